"""Jobs on Ray: who is idle, who is busy, and who only waits for actors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dfx_agent.facts.rank import Arrival, ExitStatus, Failure, RankFacts
from dfx_agent.facts.stacks import Frame, ProcessStacks, ThreadStack, client_of
from dfx_agent.judge.hang.judge import HangJudge
from dfx_agent.snapshot import Verdict
from dfx_agent.snapshot.faults import Faults

SECOND = 10**9
NOW = 10**6 * SECOND
RAY = "/venv/lib/python3.11/site-packages/ray"
LOOP = (
    Frame(f"{RAY}/_private/workers/default_worker.py", 323, "<module>"),
    Frame(f"{RAY}/_private/worker.py", 1069, "main_loop"),
)
CALLS = (
    *LOOP,
    Frame(f"{RAY}/_private/function_manager.py", 740, "actor_method_executor"),
    Frame(f"{RAY}/util/tracing/tracing_helper.py", 487, "_resume_span"),
)
GET = (
    Frame(f"{RAY}/_private/auto_init_hook.py", 22, "auto_init_wrapper"),
    Frame(f"{RAY}/_private/worker.py", 3009, "get"),
    Frame(f"{RAY}/_private/worker.py", 1007, "get_objects"),
)


def stacks(*frames: Frame) -> ProcessStacks:
    return ProcessStacks("guest", NOW, (ThreadStack("MainThread", 1, is_main=True, frames=frames),))


def own(function: str) -> Frame:
    return Frame("/job/env.py", 42, function)


IDLE = stacks(*LOOP)
BLOCKED = stacks(*CALLS, own("collect"), own("read_reply"))
ASKS = stacks(*CALLS, own("collect"), *GET)
DRIVER = stacks(own("<module>"), *GET)


def actor(label: int, quiet: float, frames: ProcessStacks, **known) -> RankFacts:
    """One whose method ``collect`` took 0.1 s so far."""
    facts = {
        "stage_durations": {"collect": (SECOND // 10,) * 9}, "num_still": 9, "begin_ns": 1,
        "stages": () if frames is IDLE else ("collect",),
    }  # fmt: skip
    return RankFacts(
        label=str(label), rank=label, pid=100 + label, world_size=2, is_ray_worker=True,
        now_ns=NOW, now_seconds=NOW / 1e9, moved_ns=NOW - int(quiet * SECOND), stacks=frames,
        **{**facts, **known},
    )  # fmt: skip


def driver(quiet: float, **known) -> RankFacts:
    return replace(
        actor(0, quiet, DRIVER), label="p99", rank=-1, pid=99, is_ray_worker=False, stages=(),
        stage_durations={}, world_size=1, **known,
    )  # fmt: skip


def judged(quiet: float, **roles) -> dict[tuple[str, str], Verdict]:
    verdicts = HangJudge(Faults(), "r").verdicts(roles, quiet, NOW / 1e9)
    return {(verdict.kind, verdict.role): verdict for verdict in verdicts}


@pytest.mark.parametrize(
    ("frames", "client"),
    [(IDLE, ""), (BLOCKED, ""), (ASKS, "a Ray object"), (DRIVER, "a Ray object")],
)
def test_only_a_client_inside_the_jobs_own_innermost_call_is_waited_for(frames, client):
    assert client_of(frames) == client
    assert frames.is_idle_actor == (frames is IDLE)


def test_a_method_in_another_thread_is_what_the_actor_does():
    main, other = IDLE.threads[0], BLOCKED.threads[0]
    both = replace(IDLE, threads=(main, replace(other, is_main=False)))
    assert both.own_frame == own("read_reply")
    assert not both.is_idle_actor


def test_the_busy_actor_next_to_idle_ones_is_named_and_not_the_driver():
    ranks = (actor(0, 40, IDLE), actor(1, 40, BLOCKED))
    found = judged(40, Sampler=ranks, driver=(driver(40),))
    hang = found["hang", "Sampler"]
    assert (hang.state, hang.ranks, hang.cause) == ("found", ("1",), "stuck")
    assert hang.summary == (
        "Rank 1 has been in collect, at read_reply (env.py:42) for 40 s, "
        "while the other actors are idle and the driver waits."
    )
    assert found["hang", "driver"].state != "found"


def test_nobody_is_accused_while_something_in_the_run_moves():
    ranks = (actor(0, 40, IDLE), actor(1, 40, BLOCKED))
    hang = judged(1, Sampler=ranks, driver=(driver(40),))["hang", "Sampler"]
    assert (hang.state, hang.ranks) == ("insufficient evidence", ())
    assert "Rank 1 has been in collect" in hang.summary


def test_actors_that_are_idle_or_wait_for_actors_are_never_to_blame():
    ranks = (actor(0, 900, IDLE), actor(1, 900, ASKS))
    found = judged(900, Sampler=ranks, driver=(driver(900),))
    assert {verdict.state for verdict in found.values()} <= {"clear", "insufficient evidence"}


def test_a_driver_that_waits_for_long_is_not_to_blame():
    waiting = driver(300, step=9, num_steps=9, step_durations=(SECOND,) * 9)
    hang = judged(300, driver=(waiting,))["hang", "driver"]
    assert hang.state == "insufficient evidence"
    assert hang.summary.startswith("Process 99 has waited for a Ray object for 300 s")


def test_a_blocked_worker_is_found_as_fast_as_without_ray():
    arrival = Arrival("all_reduce", "0", 42, NOW - 14 * SECOND)
    waits = actor(0, 14, stacks(*CALLS, own("update")), arrivals=(arrival,), is_blocked=True)
    stuck = actor(1, 14, BLOCKED, num_steps=7, step=7)
    hang = judged(14, trainer=(waits, stuck))["hang", "trainer"]
    assert (hang.state, hang.ranks, hang.cause) == ("found", ("1",), "stuck")


@pytest.mark.parametrize(("seconds", "state"), [(30, "insufficient evidence"), (70, "found")])
def test_a_peer_that_the_driver_never_called_is_not_to_blame(seconds, state):
    arrival = Arrival("all_reduce", "0", 42, NOW - seconds * SECOND)
    waits = actor(0, seconds, BLOCKED, arrivals=(arrival,), is_blocked=True)
    hang = judged(seconds, trainer=(waits, actor(1, seconds, IDLE)))["hang", "trainer"]
    assert (hang.state, hang.ranks) == (state, ())
    assert "the driver has called no method of rank 1" in hang.summary


@pytest.mark.parametrize("frames", [IDLE, BLOCKED])
def test_a_suspended_actor_is_reported_whether_anybody_waits_for_it_or_not(frames):
    ranks = (actor(0, 12, IDLE), actor(1, 12, frames, is_stopped=True))
    hang = judged(12, Sampler=ranks)["hang", "Sampler"]
    assert (hang.state, hang.ranks, hang.cause) == ("found", ("1",), "stopped")
    assert hang.summary.startswith("Rank 1 has been suspended (state T) for 12 s")
    assert hang.action == "Run `kill -CONT 101` to resume it."


def test_a_debugger_may_stop_a_process_for_a_moment():
    ranks = (actor(0, 40, IDLE), actor(1, 40, IDLE, is_stopped=True, stopped_seconds=2.0))
    assert judged(12, Sampler=ranks)["hang", "Sampler"].state != "found"


def ended(rank: RankFacts, ago: float, status: ExitStatus | None, **known) -> RankFacts:
    gone_ns = NOW - int(ago * SECOND)
    return replace(
        rank, state="died", gone_ns=gone_ns, alive_ns=gone_ns - SECOND // 2, exit_status=status,
        stacks=None, **known,
    )  # fmt: skip


def test_workers_that_end_together_without_a_known_driver_are_no_crash():
    dead = [ended(actor(label, 5, IDLE), 3.0, None, is_outlived=False) for label in (0, 1)]
    crash = judged(0, Sampler=tuple(dead))["crash", "Sampler"]
    assert crash.state == "insufficient evidence"
    assert crash.summary.startswith("Ranks 0, 1 ended together with Ray")


KILLED, FAILED, BUS = ExitStatus(None, 9), ExitStatus(1, None), ExitStatus(None, 7)
WELL = ExitStatus(0, None)


@pytest.mark.parametrize(
    ("of_driver", "of_actors", "state"),
    [
        ((3.0, WELL), (2.5, KILLED), "clear"),
        ((3.0, WELL), (3.0, FAILED), "clear"),  # seen in one reading
        ((3.0, KILLED), (2.5, KILLED), "clear"),
        ((3.0, WELL), (2.5, BUS), "found"),  # a fault of its own
        ((2.5, FAILED), (4.0, KILLED), "found"),  # the driver fails because an actor died
    ],
)
def test_workers_that_ray_ends_with_their_driver_have_not_crashed(of_driver, of_actors, state):
    first = ended(driver(5), *of_driver)
    dead = ended(actor(1, 5, IDLE), *of_actors, is_outlived=True)
    alive = actor(0, 5, IDLE)
    crash = judged(0, Sampler=(alive, dead), driver=(first,))["crash", "Sampler"]
    assert crash.state == state, crash.summary
    if state == "clear":
        assert crash.summary == "Process 99, the driver, ended, and Ray ended rank 1 with it."


ACTOR_DIED = Failure(
    NOW - 3 * SECOND, "ActorDiedError", "The actor died. class_name: Sampler pid: 101 ip: 10.0.0.1"
)
PEER_CLOSED = Failure(NOW - 3 * SECOND, "RuntimeError", "Connection closed by peer [10.0.0.1]:1")


@pytest.mark.parametrize(
    ("failure", "status"),
    [(ACTOR_DIED, KILLED), (ACTOR_DIED, None), (ACTOR_DIED, FAILED), (PEER_CLOSED, KILLED)],
)
def test_a_driver_that_failed_for_an_actor_is_not_to_blame(failure, status):
    first = ended(driver(5), 3.0, FAILED, failure=failure)
    dead = ended(actor(1, 5, IDLE), 3.0, status, is_outlived=True)
    by_ray = ended(actor(0, 5, IDLE), 2.5, FAILED)
    found = judged(0, Sampler=(by_ray, dead), driver=(first,))
    assert found["crash", "driver"].state == "clear"
    assert found["crash", "driver"].summary.startswith(
        "Process 99, the driver, failed because rank 1 "
    )
    crash = found["crash", "Sampler"]
    assert (crash.state, crash.ranks) == ("found", ("1",)), crash.summary


def test_a_driver_that_failed_for_an_actor_nobody_observes_is_named():
    first = ended(driver(5), 3.0, FAILED, failure=ACTOR_DIED)
    found = judged(0, Sampler=(actor(0, 5, IDLE),), driver=(first,))
    assert (found["crash", "driver"].state, found["crash", "driver"].ranks) == ("found", ("p99",))


def test_an_actor_that_ray_ended_on_purpose_has_not_crashed():
    dead = ended(actor(1, 5, IDLE), 3.0, FAILED, is_outlived=True, was_ended_by_ray=True)
    crash = judged(0, Sampler=(actor(0, 5, IDLE), dead), driver=(driver(5),))["crash", "Sampler"]
    assert crash.state == "clear"
    assert crash.summary == "No rank has died. Ray ended rank 1 on purpose, as `ray.kill` does."


def test_an_actor_that_died_before_all_others_ended_with_ray_is_named():
    """Their driver was not observed."""
    first = ended(actor(0, 5, IDLE), 4.0, KILLED)
    rest = tuple(ended(actor(label, 5, IDLE), 2.0, FAILED) for label in (1, 2))
    found = judged(0, Judge=(first,), Sampler=rest)
    assert (found["crash", "Judge"].state, found["crash", "Judge"].ranks) == ("found", ("0",))

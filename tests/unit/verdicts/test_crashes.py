"""A death is a crash and no hang; who died first is to blame."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator

import pytest
from hang_scene import WORLD_SIZE, Rank, Scene, ending, hold_in, staged

from dfx_agent.node import memory as process_memory
from dfx_agent.node.host import exit_status


@pytest.fixture
def scene(dfx_dir) -> Iterator[Scene]:
    with staged(dfx_dir) as scene:
        yield scene


def test_a_death_is_a_crash_and_no_hang(scene):
    ranks = scene.warm_up()
    ranks[2].enters("backward")
    scene.look()
    ranks[2].dies()
    hold_in([ranks[0], ranks[1], ranks[3]], "all_reduce@0", 5)
    verdict = scene.look(0.5, "crash")
    assert (verdict.state, verdict.ranks, verdict.stage) == ("found", ("2",), "backward")
    assert (verdict.cause, verdict.step) == ("died", 4)
    assert scene.look(40).state == "clear"
    assert scene.look(40, "crash").ranks == ("2",)


def test_a_death_inside_the_collective_is_a_crash_and_no_hang(scene):
    ranks = scene.warm_up()
    hold_in(ranks, "all_reduce@0", 5)
    scene.look()
    ranks[1].dies()
    assert scene.look(60).state == "clear"
    assert scene.look(60, "crash").ranks == ("1",)


def test_who_dies_later_was_taken_along(scene):
    ranks = scene.warm_up()
    ranks[2].dies()
    scene.look()
    for rank in ranks:
        rank.dies()
    verdict = scene.look(1, "crash")
    assert verdict.ranks == ("2",)
    assert any("ranks 0, 1, 3 died" in line for line in verdict.evidence)


def test_ranks_that_die_together_are_not_put_in_order(scene):
    for rank in scene.warm_up():
        rank.dies()
    verdict = scene.look(1, "crash")
    assert verdict.state == "insufficient evidence"
    assert verdict.ranks == ()


def test_an_orderly_end_is_neither(scene):
    for rank in scene.warm_up():
        rank.segment.finish()
    assert scene.look().state == "clear"
    assert scene.look(0, "crash").state == "insufficient evidence", "no exit code yet"
    assert scene.look(1000).state == "clear"
    assert scene.look(1000, "crash").state == "clear"


def test_the_hang_stays_the_verdict_when_the_job_is_killed_for_it(scene):
    ranks = scene.warm_up()
    ranks[2].enters("backward")
    hold_in([ranks[0], ranks[1], ranks[3]], "all_reduce@0", 5)
    assert scene.look(14).ranks == ("2",)
    for rank in ranks:
        rank.dies()
    assert scene.look(20).ranks == ("2",)
    assert scene.look(20, "crash").state == "clear"


def test_a_restart_ends_the_verdicts_of_the_attempt_before(scene):
    ranks = scene.warm_up()
    ranks[2].dies()
    assert scene.look(1, "crash").state == "found"
    for rank in ranks:
        rank.dies()
    scene.look(1)
    scene.add(WORLD_SIZE)
    assert scene.look(2, "crash").state == "clear"
    assert scene.look(2).state == "clear"


TELLS_OF_REAPED = tuple(map(int, platform.release().split("-")[0].split(".")[:2])) >= (6, 15)


def ended(scene, number: int, how: str, *, is_reaped: bool = False) -> None:
    """One of four ranks ends by itself, and the agent looks."""
    ranks = scene.warm_up(runs={number: ending(how)})
    ranks[number].ends(is_reaped=is_reaped)


def forked(scene, how: str) -> None:
    """A child of rank 0, made by os.fork, that trained a little and ends; its parent reaps it."""
    script = (
        "import os, sys\n"
        "pid = os.fork()\n"
        f"if pid == 0:\n    sys.stdin.read(1)\n    {how}\n"
        "print(pid, flush=True)\nos.waitpid(pid, 0)\nprint('reaped', flush=True)\n"
        "import time; time.sleep(300)"
    )
    ranks = scene.warm_up(runs={0: (sys.executable, "-c", script)})
    child = Rank(scene.folder, -1, owner=int(ranks[0].owner.stdout.readline()))
    scene.ranks.append(child)
    child.step(1)
    scene.look()
    ranks[0].owner.stdin.close()
    assert ranks[0].owner.stdout.readline() == b"reaped\n"


@pytest.mark.parametrize("is_reaped", [False, True])
def test_a_process_that_ends_by_itself_with_success_is_no_crash(scene, is_reaped):
    ended(scene, 2, "os._exit(0)", is_reaped=is_reaped)
    verdict = scene.look(1, "crash")
    expected = "clear" if TELLS_OF_REAPED or not is_reaped else "found"
    assert verdict.state == expected
    if expected == "clear":
        assert scene.agent._runs["r"].processes["trainer", "2"].state == "exited"


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("os._exit(3)", "Rank 2 failed with exit code 3; last seen outside all stages."),
        (
            "os.kill(os.getpid(), 9)",
            "Rank 2 was killed by signal 9 (SIGKILL); last seen outside all stages.",
        ),
        (
            "os.kill(os.getpid(), 11)",
            "Rank 2 was killed by signal 11 (SIGSEGV); last seen outside all stages.",
        ),
    ],
)
def test_it_is_said_how_a_rank_ended(scene, how, text):
    ended(scene, 2, how)
    verdict = scene.look(1, "crash")
    assert (verdict.state, verdict.ranks, verdict.cause) == ("found", ("2",), "died")
    assert verdict.summary == text


def test_a_rank_that_closed_its_segment_and_failed_has_crashed(scene):
    """As an exception does: atexit runs, and the exit code is 1."""
    ranks = scene.warm_up(runs={1: ending("os._exit(1)")})
    ranks[1].segment.finish()
    assert scene.look(1, "crash").state == "insufficient evidence", "it is still ending"
    ranks[1].ends(is_reaped=False)
    ranks[0].enters("backward")
    hold_in([ranks[2], ranks[3]], "all_reduce@0", 5)
    verdict = scene.look(1, "crash")
    assert (verdict.state, verdict.ranks) == ("found", ("1",))
    assert "Rank 1 failed with exit code 1" in verdict.summary
    assert scene.look(30).summary == "The other ranks wait for a rank that died."


def test_a_rank_ended_by_the_launcher_is_not_to_blame(scene):
    ranks = scene.warm_up(runs={0: ending("os.kill(os.getpid(), 15)"), 1: ending("os._exit(1)")})
    ranks[1].segment.finish()
    scene.look()
    ranks[0].ends(is_reaped=False)  # seen first: the other one's interpreter takes its time to end
    scene.look()
    ranks[1].ends(is_reaped=False)
    verdict = scene.look(1, "crash")
    assert (verdict.state, verdict.ranks) == ("found", ("1",))
    assert any("rank 0 was killed by signal 15 (SIGTERM)" in line for line in verdict.evidence)


def test_a_job_ended_by_sigterm_has_not_crashed(scene):
    """Preempted, or ended by its user: the ranks go one after the other."""
    ranks = scene.warm_up(runs=dict.fromkeys(range(4), ending("os.kill(os.getpid(), 15)")))
    for rank in ranks:
        rank.ends(is_reaped=False)
        assert scene.look(0, "crash").state == "insufficient evidence"
    verdict = scene.look(60, "crash")
    assert verdict.state == "insufficient evidence"
    assert "The job was stopped from outside" in verdict.summary


def test_one_rank_ended_by_sigterm_before_the_others_is_named(scene):
    ended(scene, 3, "os.kill(os.getpid(), 15)")
    assert scene.look(1, "crash").state == "insufficient evidence"
    assert scene.look(12, "crash").ranks == ("3",)


def test_a_forked_child_that_its_parent_outlives_is_no_crash(scene, monkeypatch):
    """Also where the kernel does not tell its exit code."""
    monkeypatch.setattr(exit_status, "reaped_status", lambda pidfd: None)
    forked(scene, "os._exit(0)")
    verdict = scene.look(1, "crash")
    assert verdict.state == "clear"
    assert "ended with an unknown exit code" in verdict.summary


@pytest.mark.parametrize(
    ("how", "state"),
    [
        ("os._exit(1)", "clear"),
        ("os.kill(os.getpid(), 15)", "clear"),  # as multiprocessing ends its workers
        ("os.kill(os.getpid(), 11)", "found" if TELLS_OF_REAPED else "clear"),
    ],
)
def test_a_child_is_its_parents_business_unless_it_faulted(scene, how, state):
    forked(scene, how)
    assert scene.look(1, "crash").state == state


def test_the_oom_killer_is_named_where_the_kernel_counted_it(scene, monkeypatch):
    kills = iter([5] * 100)
    monkeypatch.setattr(process_memory, "memory_groups", lambda pid: ())
    monkeypatch.setattr(process_memory, "num_host_oom_kills", lambda: next(kills))
    ended(scene, 2, "os.kill(os.getpid(), 9)")
    kills = iter([6] * 100)
    verdict = scene.look(1, "crash")
    assert (verdict.cause, verdict.ranks) == ("out of memory", ("2",))
    assert "Rank 2 was killed by the kernel's OOM killer (signal 9)" in verdict.summary


def test_a_kill_without_a_count_is_no_oom(scene, monkeypatch):
    monkeypatch.setattr(process_memory, "memory_groups", lambda pid: ())
    monkeypatch.setattr(process_memory, "num_host_oom_kills", lambda: 5)
    ended(scene, 2, "os.kill(os.getpid(), 9)")
    assert scene.look(1, "crash").cause == "died"

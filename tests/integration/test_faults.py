"""What goes wrong for real: ranks that die or hang, agents that die, segments nobody can read."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from live_processes import (
    DEMO,
    DFX_AGENT,
    HERE,
    TORCHRUN,
    demo_environment,
    running,
    serving,
    started,
    until,
)
from prometheus_client.parser import text_string_to_metric_families

from dfx_agent.attach.payload import guest_files
from dfx_agent.wire import layout

RANK_LOOP = [sys.executable, str(HERE / "rank_loop.py")]


def rank_environment(rank, world_size=2, **changes):
    return demo_environment(RANK=str(rank), WORLD_SIZE=str(world_size), DFX_RUN="it", **changes)


@contextlib.contextmanager
def two_ranks(folder, *words):
    with (
        started([*RANK_LOOP, *words], folder, rank_environment(0)) as zero,
        started([*RANK_LOOP, *words], folder, rank_environment(1)) as one,
    ):
        yield zero, one


def demo(num_ranks, *options):
    return [*TORCHRUN, str(num_ranks), *DEMO, "--steps", "1000", *options]


def segments(folder):
    return sorted(path.name for path in folder.glob("*.seg"))


def states(agent):
    return {rank: row["state"] for rank, row in agent.ranks().items()}


def steps(agent):
    return {rank: row["step"] or 0 for rank, row in agent.ranks().items()}


def innermost(row):
    """(kind, name) of the stage or wait that is open; the collective in it is left out."""
    spans = [span for span in row["inflight"] if span["kind"] != "collective"]
    return (spans[-1]["kind"], spans[-1]["name"]) if spans else None


def samples(agent, name):
    """[(labels, value)] of one metric at /metrics."""
    families = text_string_to_metric_families(agent.get("/metrics"))
    return [(s.labels, s.value) for f in families for s in f.samples if s.name == name]


# ranks


def test_rank_killed_in_mid_stage_is_shown_where_it_died(dfx_dir, tmp_path, free_port):
    with serving(tmp_path, free_port()) as agent:
        with started(demo(2, "--fault", "crash:1:2"), tmp_path, demo_environment()) as job:
            assert job.wait() == 1
        until(lambda: states(agent).get("1") == "died", "rank 1 died")
        until(lambda: states(agent)["0"] in ("died", "exited"), "torchrun ended rank 0")
        died = agent.ranks()["1"]
        assert died["step"] == 2
        assert [(s["kind"], s["name"]) for s in died["inflight"]] == [
            ("stage", "actor_update"),
            ("stage", "backward"),
        ]
        assert died["last"]["wall_seconds"] > 0
        up = {labels["rank"]: value for labels, value in samples(agent, "dfx_rank_up")}
        assert up == {"0": 0, "1": 0}
        before = agent.snapshot()["agent"]["num_polls"]
        until(lambda: agent.snapshot()["agent"]["num_polls"] > before + 3, "agent goes on")


def test_the_hanging_rank_differs_from_those_that_wait(dfx_dir, tmp_path, free_port):
    command = demo(2, "--fault", "hang:1:rollout:2")
    with running(tmp_path, free_port(), command, demo_environment()) as agent:

        def hangs():
            ranks = agent.ranks()
            places = {rank: innermost(row) for rank, row in ranks.items()}
            stuck = {"0": ("wait", "collective"), "1": ("stage", "rollout")}
            return ranks if places == stuck and steps(agent)["1"] == 2 else None

        first = until(hangs, "rank 1 in rollout, rank 0 waits", 60)

        def grown(rank):
            begun, later = first[rank]["inflight"][-1], agent.ranks()[rank]["inflight"][-1]
            return later["elapsed_seconds"] - begun["elapsed_seconds"]

        def in_rollout(ranks):
            return ranks["1"]["current"]["stage_seconds"].get("rollout", 0)

        until(lambda: grown("0") > 1 and grown("1") > 1, "both stand")
        until(lambda: in_rollout(agent.ranks()) > in_rollout(first) + 1, "time goes to the rollout")
        until(lambda: waited_in_update(agent.ranks()["0"]) > 1, "and to the wait for it")
        assert sum(samples_of_rank(agent, "dfx_rank_wait_seconds_total", "0")) > 1


def waited_in_update(row):
    return row["totals"]["wait_seconds"].get("collective", {}).get("actor_update", 0)


def samples_of_rank(agent, name, rank):
    return [value for labels, value in samples(agent, name) if labels["rank"] == rank]


def test_rank_that_comes_back_takes_its_place(dfx_dir, tmp_path, free_port):
    with serving(tmp_path, free_port()) as agent:
        with started(RANK_LOOP, tmp_path, rank_environment(0)) as job:
            until(lambda: steps(agent).get("0", 0) >= 3, "steps")
            job.send(signal.SIGKILL)
            job.wait()
        until(lambda: states(agent)["0"] == "died", "death")
        dead = agent.ranks()["0"]
        with started(RANK_LOOP, tmp_path, rank_environment(0)) as job:
            until(lambda: states(agent)["0"] == "live", "new attempt")
            until(lambda: steps(agent)["0"] >= 2, "its steps")
            alive = agent.ranks()["0"]
            assert alive["pid"] == job.pid
            assert alive["attempt"] == dead["attempt"] + 1
            assert alive["totals"]["wall_seconds"] > dead["totals"]["wall_seconds"]
            assert alive["tokens_total"]["response"] > dead["tokens_total"]["response"]
            assert list(agent.ranks()) == ["0"]


BECOME_ANOTHER = """
import os, sys
import dfx_agent.shim as dfx
dfx.init()
dfx.set_step(1)
with dfx.stage("rollout"):
    pass
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_rank_that_becomes_another_program_is_one_rank(dfx_dir, tmp_path, free_port):
    command = [sys.executable, "-c", BECOME_ANOTHER, *RANK_LOOP[1:]]
    with serving(tmp_path, free_port()) as agent:
        with started(command, tmp_path, rank_environment(0)) as job:
            until(lambda: max(steps(agent).values(), default=0) >= 3, "steps after exec")
            assert states(agent) == {"0": "live"}
            job.send(signal.SIGTERM)
            assert job.wait() == 0
        until(lambda: states(agent) == {"0": "exited"}, "its end", 5)
        until(lambda: segments(dfx_dir) == [], "no segment stays", 5)


# agents


def test_a_killed_agent_continues_after_its_restart(dfx_dir, tmp_path, free_port):
    with two_ranks(tmp_path) as (zero, one):
        with serving(tmp_path, free_port()) as agent:
            until(lambda: min(steps(agent).values(), default=0) >= 2, "first steps")
            agent.kill()
        assert (zero.popen.poll(), one.popen.poll()) == (None, None)
        with serving(tmp_path, free_port()) as agent:
            until(lambda: set(states(agent)) == {"0", "1"}, "both ranks")
            last = int(zero.output.split()[-1])
            until(lambda: min(steps(agent).values()) > last, "newer steps than before")
            ranks = agent.ranks()
            assert {r["pid"] for r in ranks.values()} == {zero.pid, one.pid}
            assert all(r["num_lost_records"] == 0 for r in ranks.values())
            # the ring still held the beginning
            assert all(r["tokens_total"]["response"] >= 100 * last for r in ranks.values())
            history = agent.json("/api/v1/runs/it/scalars?key=critic/rewards/mean")
            assert history[0]["steps"][: last - 1] == list(range(1, last))
            zero.send(signal.SIGTERM)
            assert zero.wait() == 0


def test_agent_under_run_is_killed_and_another_takes_over(dfx_dir, tmp_path, free_port):
    with running(tmp_path, free_port(), RANK_LOOP, rank_environment(0)) as beside:
        until(lambda: steps(beside).get("0", 0) >= 2, "steps")
        beside.kill()
        with serving(tmp_path, free_port()) as agent:
            until(lambda: steps(agent).get("0", 0) >= 4, "the job goes on")
            row = agent.ranks()["0"]
            assert row["state"] == "live"
            os.kill(row["pid"], signal.SIGTERM)
            until(lambda: states(agent)["0"] == "exited", "orderly end is seen")
            until(lambda: segments(dfx_dir) == [], "its segment is removed")


def test_run_that_began_before_the_agent(dfx_dir, tmp_path, free_port):
    with two_ranks(tmp_path) as jobs:
        until(lambda: all("step 9" in job.output for job in jobs), "steps without an agent")
        for job in jobs:  # a snapshot has the newest steps only: these shall still be among them
            job.send(signal.SIGSTOP)
        came_seconds = time.time()
        with serving(tmp_path, free_port()) as agent:
            until(lambda: set(steps(agent)) == {"0", "1"}, "both ranks")
            until(
                lambda: {s["step"] for s in agent.snapshot()["runs"][0]["steps"]} >= {3, 4},
                "closed steps from before",
            )
            for job in jobs:
                job.send(signal.SIGCONT)

            def missing_share():
                """Of rank 0's time before the agent: 0 if all is counted, 1 if nothing is."""
                row = agent.ranks()["0"]
                age_seconds = time.time() - row["begin_seconds"]
                assert 0 < row["totals"]["wall_seconds"] <= age_seconds
                missing_seconds = age_seconds - row["totals"]["wall_seconds"]
                return missing_seconds / (came_seconds - row["begin_seconds"])

            until(lambda: missing_share() < 0.5, "the time from before is counted")
            assert min(steps(agent).values()) >= 9


def test_run_that_ended_before_the_agent_leaves_nothing(dfx_dir, tmp_path, free_port):
    with two_ranks(tmp_path, "2") as jobs:
        assert [job.wait() for job in jobs] == [0, 0]
    assert len(segments(dfx_dir)) == 2
    with serving(tmp_path, free_port()) as agent:
        until(lambda: segments(dfx_dir) == [], "segments removed")
        assert set(states(agent).values()) <= {"exited"}
        assert [r["step"] for r in agent.snapshot()["runs"][0]["steps"]] == [1, 2]
        assert agent.snapshot()["agent"]["num_reaped_segments"] == 2


def test_run_that_was_killed_before_the_agent_is_shown_as_died(dfx_dir, tmp_path, free_port):
    with two_ranks(tmp_path) as jobs:
        until(lambda: all("step 3" in job.output for job in jobs), "steps")
        for job in jobs:
            job.send(signal.SIGKILL)
            job.wait()
    with serving(tmp_path, free_port()) as agent:
        until(lambda: states(agent) == {"0": "died", "1": "died"}, "both died")
        for row in agent.ranks().values():
            assert row["step"] >= 3
            assert innermost(row) is not None
            assert row["totals"]["wall_seconds"] < 30
        assert len(segments(dfx_dir)) == 2, "deaths are kept for a while"


def test_second_agent_serves_and_takes_over(dfx_dir, tmp_path, free_port):
    with (
        two_ranks(tmp_path) as jobs,
        serving(tmp_path, free_port()) as first,
        serving(tmp_path, free_port()) as second,
    ):
        assert f"pid {first.process.pid} serves this folder too" in until(
            lambda: second.process.output.count("\n") >= 3 and second.process.output, "3 lines"
        )
        until(lambda: set(states(second)) == set(states(first)) == {"0", "1"}, "both show")
        assert second.snapshot()["agent"]["other_agent_pid"] == first.process.pid
        assert first.snapshot()["agent"]["other_agent_pid"] is None
        first.kill()
        until(lambda: second.snapshot()["agent"]["other_agent_pid"] is None, "the second took over")
        for job in jobs:
            job.send(signal.SIGTERM)
        until(lambda: segments(dfx_dir) == [], "the second reaps")
        assert second.snapshot()["agent"]["num_reaped_segments"] == 2


# segments that cannot be read


def spoil(folder, kind):
    """A copy of a real segment with something wrong, which the agent should call ``kind``."""
    source = next(path for path in folder.glob("*.seg") if not path.name.startswith("spoilt"))
    path = folder / f"spoilt-{kind}.seg"
    shutil.copy(source, path)
    with path.open("r+b") as file:
        if kind == "version":
            file.seek(8 + 4)
            file.write((layout.MAJOR + 1).to_bytes(2, sys.byteorder))
        elif kind == "truncated":
            file.truncate(layout.RING_OFFSET)
        elif kind == "corrupted":
            file.write(b"nonsense")
    if kind == "permission":
        path.chmod(0)
    return path


def without_root_rights():
    """Under which root, too, is refused what its file modes do not allow."""
    if os.getuid() != 0:
        return []
    if not shutil.which("setpriv"):
        pytest.skip("root reads everything here; util-linux has setpriv")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


def test_unreadable_segments_are_reported_next_to_the_readable_ones(dfx_dir, tmp_path, free_port):
    kinds = ("corrupted", "permission", "truncated", "version")
    with two_ranks(tmp_path):
        until(lambda: len(segments(dfx_dir)) == 2, "two real segments")
        paths = {kind: str(spoil(dfx_dir, kind)) for kind in kinds}
        with serving(tmp_path, free_port(), prefix=without_root_rights()) as agent:
            until(lambda: min(steps(agent).values(), default=0) >= 3, "real ranks are shown")
            assert states(agent) == {"0": "live", "1": "live"}
            problems = agent.snapshot()["agent"]["problems"]
            assert {p["kind"]: p["path"] for p in problems} == paths
            for problem in problems:
                assert problem["path"] in problem["message"]
                assert "\n" not in problem["message"]
                assert ": " in problem["message"], "what to do comes after a colon"
            refused = samples(agent, "dfx_agent_refused_segments")
            assert sorted((labels["kind"], value) for labels, value in refused) == [
                (kind, 1) for kind in kinds
            ]
            listed = subprocess.run(
                [*without_root_rights(), *DFX_AGENT, "ps", "--json"],
                check=True, capture_output=True, env=demo_environment(),
            )  # fmt: skip
            assert len(json.loads(listed.stdout)["agent"]["problems"]) == 4
            for path in paths.values():
                Path(path).unlink()
            until(lambda: agent.snapshot()["agent"]["problems"] == [], "problems go away")
            assert samples(agent, "dfx_agent_refused_segments") == []


def test_segment_of_another_user_is_refused(dfx_dir, tmp_path, free_port):
    if os.getuid() != 0:
        pytest.skip("only root can give a file away")
    with two_ranks(tmp_path):
        until(lambda: len(segments(dfx_dir)) == 2, "two real segments")
        path = shutil.copy(next(dfx_dir.glob("*.seg")), dfx_dir / "spoilt-other.seg")
        path.chmod(0o600)
        os.chown(path, 65534, 65534)
        with serving(tmp_path, free_port(), prefix=without_root_rights()) as agent:
            until(lambda: set(states(agent)) == {"0", "1"}, "real ranks are shown")
            (problem,) = agent.snapshot()["agent"]["problems"]
            assert problem["kind"] == "permission"
            assert "belongs to another user" in problem["message"]


def test_segment_spoilt_while_it_is_followed_costs_only_its_rank(dfx_dir, tmp_path, free_port):
    with two_ranks(tmp_path) as (zero, one), serving(tmp_path, free_port()) as agent:
        until(lambda: min(steps(agent).values(), default=0) >= 2, "steps")
        (path,) = dfx_dir.glob(f"{zero.pid}-*.seg")
        copy = path.read_bytes()
        with path.open("r+b") as file:
            file.write(os.urandom(layout.NAMES_OFFSET))
        now = steps(agent)["1"]
        until(lambda: steps(agent)["1"] >= now + 3, "rank 1 goes on")
        assert len(copy) == path.stat().st_size
        assert (zero.popen.poll(), one.popen.poll()) == (None, None)
        assert agent.process.popen.poll() is None


# no room


def run_in_small_memory(tmp_path: Path, num_kib: int) -> list[str]:
    """Lines on stderr of a healthy job under ``run`` whose DFX_DIR holds only so much."""
    if os.getuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("mounting needs root")
    folder = tmp_path / "small"
    folder.mkdir(mode=0o700)
    script = f'mount -t tmpfs -o size={num_kib}k,mode=700 tmpfs "$0" && exec "$@"'
    run = [*DFX_AGENT, "run", "--listen", "127.0.0.1:0", "--"]
    ended = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, folder, *run, *RANK_LOOP, "2"],
        check=False, capture_output=True, text=True, timeout=60,
        env=demo_environment(DFX_DIR=str(folder)),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "step 1\nstep 2\n"
    return ended.stderr.splitlines()


def test_no_room_for_a_segment_is_one_line_and_the_job_runs(tmp_path):
    guest = sum(4 + 4 * (len(source) >> 12) for source in guest_files().values())
    page, problem = run_in_small_memory(tmp_path, guest + 100)
    assert page.startswith("dfx-agent: page http")
    assert problem.startswith("dfx-agent: no room for ")
    assert "free /dev/shm or set DFX_DIR" in problem
    assert problem.endswith("(this process runs unobserved)")


def test_no_room_for_the_guest_is_one_line_and_the_job_runs(tmp_path):
    problem, *_of_the_rank_itself = run_in_small_memory(tmp_path, 100)
    assert problem.startswith("dfx-agent: no room for ")
    assert "free /dev/shm or set DFX_DIR" in problem
    assert problem.endswith("CMD runs unobserved")


def test_folder_that_vanishes_does_not_end_the_agent(dfx_dir, tmp_path, free_port):
    folder = dfx_dir / "gone"
    environment = demo_environment(DFX_DIR=str(folder))
    with serving(tmp_path, free_port(), env=environment) as agent:
        shutil.rmtree(folder)
        problems = until(lambda: agent.snapshot()["agent"]["problems"], "it is told")
        assert problems[0]["kind"] == "folder"
        with started(RANK_LOOP, tmp_path, rank_environment(0, DFX_DIR=str(folder))):
            until(lambda: states(agent).get("0") == "live", "a new job makes the folder again")
            assert agent.snapshot()["agent"]["problems"] == []


def test_agent_ends_in_an_orderly_way(dfx_dir, tmp_path, free_port):
    with serving(tmp_path, free_port()) as agent:
        agent.process.send(signal.SIGTERM)
        assert agent.process.wait(20) == 0
        assert agent.process.errors == ""

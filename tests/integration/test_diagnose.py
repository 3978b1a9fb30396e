"""Hangs and deaths of real DDP jobs: the verdict, `diagnose`, the evidence file, `report`."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")
from live_processes import (
    DFX_AGENT,
    LiveAgent,
    Started,
    job_environment,
    serving,
    started,
    until,
    unused_port,
)

from dfx_agent.attach.spawn import environment

JOB = str(Path(__file__).parent / "jobs" / "faulty_ddp.py")
PIPELINE = str(Path(__file__).parent / "jobs" / "pipeline_deadlock.py")
NUM_RANKS = 3
LATE_SECONDS = 25.0  # the bar is 15 s; a loaded machine must not fail the test


def records_gloo() -> bool:
    """Whether this torch has a flight recorder of gloo: 2.13 and newer."""
    import torch.distributed

    c10d = getattr(torch._C, "_distributed_c10d", None)
    return hasattr(c10d, "_dump_fr_trace_json")


class Scene:
    """An agent, a DDP job of three ranks, and what is said of it."""

    def __init__(self, folder: Path, agent: LiveAgent, ranks: list[Started]) -> None:
        self.folder = folder
        self.agent = agent
        self.ranks = ranks

    def verdict(self, kind: str = "hang") -> dict:
        found = [v for r in self.agent.snapshot()["runs"] for v in r["verdicts"]]
        of_kind = [v for v in found if v["kind"] == kind]
        return of_kind[0] if of_kind else {"state": "none", "summary": "not judged"}

    def wait_for(self, state: str, kind: str = "hang") -> dict:
        def look():
            verdict = self.verdict(kind)
            return verdict if verdict["state"] == state else None

        return until(look, f"{kind} {state}", LATE_SECONDS)

    def wait_for_step(self, step: int) -> None:
        for rank in self.ranks:
            until(lambda rank=rank: f"step {step}\n" in rank.output, f"step {step}", 90)

    def cli(self, *args: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [*DFX_AGENT, *args],
            check=False, capture_output=True, text=True, timeout=60, env=job_environment(),
        )  # fmt: skip

    def evidence(self, kind: str = "hang") -> list[dict]:
        files = sorted((self.folder / "evidence").glob(f"*-{kind}*.json"))
        for file in files:
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        return [json.loads(file.read_text()) for file in files]


@contextmanager
def job(
    folder: Path, logs: Path, *fault: str, script: str = JOB, num_ranks: int = NUM_RANKS
) -> Iterator[Scene]:
    port, store = unused_port(), str(unused_port())
    with ExitStack() as stack:
        agent = stack.enter_context(serving(logs, port))
        ranks = []
        for rank in range(num_ranks):
            known = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks}
            env = environment(
                job_environment(
                    MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=store,
                    **{name: str(value) for name, value in known.items()},
                ),
                str(folder),
                "faulty",
            )
            ranks.append(stack.enter_context(started([sys.executable, script, *fault], logs, env)))
        yield Scene(folder, agent, ranks)


def with_all_stacks(documents: list[dict]) -> list[dict]:
    """The evidence, once it has a stack of each of three ranks."""
    groups = [group for document in documents for group in document["stacks"]]
    ranks = [rank for group in groups for rank in group["ranks"]]
    return documents if sorted(ranks) == ["0", "1", "2"] else []


def without_agent(folder: Path) -> Path:
    """The same segments in a folder that no agent follows."""
    beside = folder / "beside"
    beside.mkdir(mode=0o700)
    for segment in folder.glob("*.seg"):
        os.link(segment, beside / segment.name)
    return beside


def test_a_long_checkpoint_is_no_hang_but_a_stopped_rank_is(dfx_dir, tmp_path):
    with job(dfx_dir, tmp_path, "checkpoint", "30", "17") as scene:
        scene.wait_for_step(29)
        begin = time.monotonic()
        while "step 30\n" not in scene.ranks[0].output:
            assert scene.verdict()["state"] in {"clear", "none"}, scene.verdict()
            assert time.monotonic() - begin < 90
            time.sleep(0.2)
        assert time.monotonic() - begin > 16
        scene.wait_for_step(40)

        quiet = scene.cli("diagnose", "--url", scene.agent.url)
        assert (quiet.returncode, "hang (trainer): clear" in quiet.stdout) == (0, True), quiet
        os.kill(scene.ranks[2].pid, signal.SIGSTOP)
        begin = time.monotonic()
        verdict = scene.wait_for("found")
        print(f"stopped rank found after {time.monotonic() - begin:.1f} s: {verdict['summary']}")
        assert verdict["ranks"] == ["2"]
        assert verdict["cause"] == "stopped"

        by_url = scene.cli("diagnose", "--json", "--url", scene.agent.url)
        assert by_url.returncode == 1
        (run,) = json.loads(by_url.stdout)["runs"]
        assert [v["ranks"] for v in run["verdicts"] if v["state"] == "found"] == [["2"]]
        found = scene.cli("diagnose", "--dir", str(dfx_dir))
        assert (found.returncode, f"from {scene.agent.url}\n" in found.stdout) == (1, True), found
        read = scene.cli("diagnose", "--dir", str(without_agent(dfx_dir)))
        assert read.returncode == 1, read
        assert "from segments" in read.stdout
        assert "to blame: 2" in read.stdout
        assert f"kill -CONT {scene.ranks[2].pid}" in read.stdout

        until(scene.evidence, "evidence")
        os.kill(scene.ranks[2].pid, signal.SIGCONT)
        scene.wait_for("clear")
        until(lambda: scene.evidence()[0]["outcome"] == "over", "the end in the evidence")
        assert len(scene.evidence()) == 1
        assert [rank.errors for rank in scene.ranks] == [""] * NUM_RANKS


@pytest.mark.smoke
def test_a_rank_that_sleeps_in_forward_is_found_with_its_stack_and_the_job_is_killed(
    dfx_dir, tmp_path
):
    with job(dfx_dir, tmp_path, "forward", "25") as scene:
        scene.wait_for_step(24)
        begin = time.monotonic()
        verdict = scene.wait_for("found")
        print(f"sleeping rank found after {time.monotonic() - begin:.1f} s: {verdict['summary']}")
        assert (verdict["ranks"], verdict["stage"]) == (["1"], "forward")
        assert verdict["step"] == 25

        (document,) = until(lambda: with_all_stacks(scene.evidence()), "stacks of all ranks")
        dominant, outlier = document["stacks"]
        assert (sorted(dominant["ranks"]), outlier["ranks"]) == (["0", "2"], ["1"])
        assert outlier["frames"][-1].startswith("forward (faulty_ddp.py")
        assert any("backward" in frame for frame in dominant["frames"])
        evidence = scene.verdict()["evidence"]
        assert any("forward (faulty_ddp.py" in line for line in evidence)
        if records_gloo():
            (line,) = (line for line in evidence if line.startswith("flight recorder: "))
            assert "all_reduce@0 #" in line
            assert "; not by rank 1, last call " in line
        for rank in scene.ranks:
            rank.popen.kill()
        until(lambda: scene.evidence()[0]["outcome"] == "job ended", "the end in the evidence")
        assert scene.verdict()["ranks"] == ["1"]
        assert scene.verdict("crash")["state"] == "clear"

    page = tmp_path / "report.html"
    (file,) = (dfx_dir / "evidence").glob("*.json")
    result = scene.cli("report", str(page), "--evidence", str(file))
    assert result.returncode == 0, result.stderr
    html = page.read_text()
    assert "hang of trainer" in html
    assert "forward (faulty_ddp.py" in html
    assert "http" not in html


def test_ranks_that_wait_for_each_other_through_a_receive_are_named(dfx_dir, tmp_path):
    with job(dfx_dir, tmp_path, script=PIPELINE, num_ranks=2) as scene:
        verdict = until(
            lambda: scene.verdict() if scene.verdict()["state"] == "found" else None, "hang", 120
        )
        assert (verdict["cause"], verdict["ranks"]) == ("circular wait", ["0", "1"])
        assert "ank 0 waits in all_reduce for" in verdict["summary"]
        assert "rank 1 waits in recv from rank 0" in verdict["summary"]
        before = scene.agent.snapshot()["agent"]["num_polls"]
        until(lambda: scene.agent.snapshot()["agent"]["num_polls"] > before, "another reading")
        result = scene.cli("diagnose", "--url", scene.agent.url)
        assert (result.returncode, "recv from rank 0" in result.stdout) == (1, True), result


def test_a_killed_rank_is_a_crash(dfx_dir, tmp_path):
    with job(dfx_dir, tmp_path, "none", "0") as scene:
        scene.wait_for_step(5)
        scene.ranks[1].popen.kill()
        verdict = scene.wait_for("found", "crash")
        assert (verdict["ranks"], verdict["cause"]) == (["1"], "died")
        assert scene.verdict()["state"] == "clear"
        until(lambda: scene.evidence("crash"), "evidence")
        (document,) = scene.evidence("crash")
        assert document["verdict"]["ranks"] == ["1"]


def test_collectives_that_do_not_match_are_named(dfx_dir, tmp_path):
    with job(dfx_dir, tmp_path, "mismatch", "25") as scene:
        scene.wait_for_step(24)
        verdict = scene.wait_for("found")
        assert (verdict["cause"], verdict["ranks"]) == ("mismatched collectives", ["1"])
        assert "rank 1 waits in broadcast" in verdict["summary"]


# the command line


def test_without_a_process_there_is_nothing_to_find(dfx_dir, run_cli):
    result = run_cli("diagnose", "--dir", str(dfx_dir), "--watch", "0")
    assert result.returncode == 2
    assert "no observed process" in result.stdout
    result = run_cli("diagnose", "--dir", str(dfx_dir), "--watch", "0", "--json")
    assert json.loads(result.stdout) == {
        "source": "segments",
        "blind": None,
        "runs": [],
        "finished": [],
    }


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["diagnose", "--url", "http://127.0.0.1:9"], "is an agent there?"),
        (["diagnose", "--url", "file:///etc/passwd"], "write http://HOST:PORT"),
        (["diagnose", "--watch", "-1"], "--watch -1"),
        (["diagnose", "--watch", "nan"], "--watch nan"),
        (["diagnose", "--run", "nobody", "--watch", "0"], "no run named nobody"),
        (["diagnose", "--token-file", "/no/such/token"], "/no/such/token"),
        (["report", "out.html", "--evidence", "/no/such/file"], "/no/such/file"),
        (["report", "out.html", "--evidence", "/dev/null"], "not JSON"),
    ],
    ids=" ".join,
)
def test_wrong_use_is_one_line_and_exit_code_2(dfx_dir, tmp_path, run_cli, args, says):
    ended = run_cli(*args, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert says in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "damage", ['{"format": 1}', '{"format": 1, "run": {"run": 3}}', "[]", "{}"]
)
def test_a_damaged_evidence_file_is_one_line(dfx_dir, tmp_path, run_cli, damage):
    (tmp_path / "e.json").write_text(damage)
    ended = run_cli("report", str(tmp_path / "out.html"), "--evidence", str(tmp_path / "e.json"))
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1


HOSTILE = "<script>alert(1)</script>"


def test_a_report_of_now_is_escaped_and_needs_nothing(dfx_dir, tmp_path, run_cli):
    code = (
        "import sys, time, dfx_agent.shim as dfx\n"
        "dfx.init(run=sys.argv[1], role=sys.argv[1][:20], rank=0)\n"
        "for step in range(1, 4):\n"
        "    dfx.set_step(step)\n"
        "    with dfx.stage(sys.argv[1]): time.sleep(0.05)\n"
        "with dfx.stage(sys.argv[1]):\n"
        "    print('ready', flush=True); time.sleep(60)\n"
    )
    env = job_environment(PYTHONPATH=str(Path(__file__).parents[2]))
    with started([sys.executable, "-c", code, HOSTILE], tmp_path, env) as process:
        until(lambda: "ready" in process.output, "job runs")
        ended = run_cli("report", str(tmp_path / "out.html"), "--dir", str(dfx_dir))
        assert ended.returncode == 0, ended.stderr
    html = (tmp_path / "out.html").read_text()
    assert HOSTILE not in html
    assert "&lt;script&gt;" in html
    assert "<script" not in html
    assert "http" not in html
    assert html.count("<tr>") > 3

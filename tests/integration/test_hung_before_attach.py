"""Jobs that hung before anybody attached: torch's flight recorder says in what."""

from __future__ import annotations

import json
import re
import subprocess
import sys
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
    started,
    until,
    unused_port,
)
from test_attach import attached
from test_diagnose import records_gloo

JOB = str(Path(__file__).parent / "jobs" / "stuck_ranks.py")
NUM_RANKS = 2


@pytest.fixture(autouse=True)
def recorder() -> None:
    if not records_gloo():
        pytest.skip("this torch records nothing of gloo; 2.13 and newer do")


@contextmanager
def hung(logs: Path, fault: str) -> Iterator[list[Started]]:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused_port())}
    with ExitStack() as stack:
        ranks = []
        for rank in range(NUM_RANKS):
            known = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": NUM_RANKS}
            env = job_environment(**place, **{name: str(value) for name, value in known.items()})
            env.pop("DFX_DIR", None)
            ranks.append(stack.enter_context(started([sys.executable, JOB, fault], logs, env)))
        for rank in ranks:
            until(lambda rank=rank: "hangs" in rank.output, "the job hangs", 90)
        yield ranks


def hang_verdict(agent: LiveAgent, words: str) -> dict:
    """The hang verdict whose summary has these words."""

    def look() -> dict | None:
        verdicts = [v for run in agent.snapshot()["runs"] for v in run["verdicts"]]
        found = [v for v in verdicts if v["kind"] == "hang" and words in v["summary"]]
        return found[0] if found else None

    return until(look, words, 60)


def test_different_collectives_under_one_number_are_a_verdict_and_evidence(dfx_dir, tmp_path):
    with hung(tmp_path, "mismatch") as ranks, attached(ranks[0].pid, tmp_path) as agent:
        verdict = hang_verdict(agent, "These calls do not match")
        assert (verdict["state"], verdict["cause"]) == ("found", "mismatched collectives")
        assert "rank 0 called all_reduce while rank 1 called broadcast" in verdict["summary"]
        calls = "\n".join(verdict["evidence"])
        assert "rank 0 called all_reduce@0 #4 [8] float32" in calls
        assert "rank 1 called broadcast@0 #4 [8] float32" in calls
        (file,) = until(lambda: list((dfx_dir / "evidence").glob("*.json")), "evidence")
        places = json.loads(file.read_text())["places"]
        last = [place["recorded_collectives"][0] for place in places]
        assert [(one["operation"], one["is_finished"]) for one in last] == [
            ("all_reduce", False),
            ("broadcast", False),
        ]
        assert [rank.errors for rank in ranks] == ["", ""]
        page = tmp_path / "report.html"
        command = [*DFX_AGENT, "report", str(page), "--evidence", str(file)]
        subprocess.run(command, check=True, timeout=60, env=job_environment())
        assert "trainer 1: broadcast [8] float32, #4 of group 0 (default_pg)" in page.read_text()
        ranks[1].popen.kill()  # and rank 0 loses its connection
        ranks[1].wait()
        agent.process.send(2)
        agent.process.wait(30)
        assert f"rank 1 pid {ranks[1].pid}: died" in agent.process.errors
    # of the one that was killed the next agent removes them
    beside = {path.stem for path in dfx_dir.iterdir() if path.suffix in {".flight", ".stacks"}}
    assert beside <= {path.stem for path in dfx_dir.glob("*.seg")}


def test_the_collective_that_a_rank_has_not_issued_is_named(dfx_dir, tmp_path):
    with hung(tmp_path, "absent") as ranks, attached(ranks[0].pid, tmp_path) as agent:
        verdict = hang_verdict(agent, "Rank 0 waits in all_reduce for rank 1")
        (line,) = (line for line in verdict["evidence"] if line.startswith("flight recorder"))
        assert "all_reduce@0 #4 [8] float32 issued by rank 0" in line
        assert "not by rank 1, last call all_reduce@0 #3 [8] float32" in line


def headline_of(text: str) -> str:
    """On one line, without how long it has lasted so far."""
    return re.sub(r"[\d.]+ (s|min)\b", "… s", " ".join(text.split()))


def test_page_and_diagnose_say_the_same(dfx_dir, tmp_path, open_page, run_cli):
    with hung(tmp_path, "absent") as ranks, attached(ranks[0].pid, tmp_path) as agent:
        hang_verdict(agent, "Rank 0 waits in all_reduce for rank 1")
        page = open_page(agent.url)
        page.wait_for_selector("#verdict-list > li")
        diagnosed = headline_of(run_cli("diagnose", "--url", agent.url).stdout)
        shown = headline_of(page.inner_text("#verdict-list"))
    result = re.search(
        r"insufficient evidence: Waiting for .*?\. (Rank 0 .*? after … s\.)", diagnosed
    )
    assert result is not None, diagnosed
    title, rest = result[1].split(", which ", maxsplit=1)
    assert rest.startswith("has been at main (stuck_ranks.py:24) for … s")
    assert f"{title}. Rank 1 {rest}" in shown

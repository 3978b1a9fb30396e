"""What `diagnose` says of a job that is over."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest
from alert_scene import AGENT
from prometheus_page import rank_row

from dfx_agent.agent.stored import evidence
from dfx_agent.commands.diagnose import colored, diagnosis_text
from dfx_agent.commands.ps.observed import Observed
from dfx_agent.snapshot import (
    UNJUDGED,
    Bottleneck,
    EngineNote,
    EnginePool,
    EventLoopRow,
    GlibcHeap,
    HostMemory,
    LagStats,
    LoopHolder,
    RunRow,
    Snapshot,
    StageDevice,
    Standing,
    StepPart,
    Verdict,
)


def seen(directory: str, *, state: str, rank_state: str) -> Observed:
    standing = Standing(state, "crash: rank 0 was told to end from outside")
    ranks = (replace(rank_row(), state=rank_state),)
    run = RunRow("nightly", "verl", 0, 0.0, ranks, (), (), standing=standing)
    return Observed("segments", directory, Snapshot(0.0, AGENT, (run,)))


@pytest.mark.parametrize(("rank_state", "is_shown"), [("died", True), ("live", False)])
def test_evidence_of_who_saw_the_end_is_shown_where_what_is_left_does_not_tell(
    tmp_path, monkeypatch, rank_state, is_shown
):
    """Rank 1 had ended with exit code 3 and left nothing; the launcher ended rank 0."""
    file = tmp_path / "nightly-20261122T125058-crash.json"
    monkeypatch.setattr(evidence, "latest_files", lambda _directory, _run="", _kind="": [file])
    reported = seen(str(tmp_path), state="insufficient evidence", rank_state=rank_state)
    lines = diagnosis_text.text(reported, None).splitlines()
    shown = [number for number, line in enumerate(lines) if f"--evidence {file}" in line]
    assert shown == ([1] if is_shown else []), "before what is left to see"


def test_json_says_a_number_that_is_none_as_the_api_does():
    found = Verdict("straggler", "found", "actor", "rank 1", lost_seconds=math.inf)
    reported = seen("/dfx", state="found", rank_state="live")
    (run,) = reported.runs
    reported = replace(
        reported, snapshot=replace(reported.snapshot, runs=(replace(run, verdicts=(found,)),))
    )
    text = diagnosis_text.DOCUMENT.dumped(diagnosis_text.diagnosis(reported, None))
    document = json.loads(text)
    assert set(document) == {"source", "blind", "runs", "finished"}
    told_of = {"run", "standing", "incidents", "verdicts", "engine_notes", "bottleneck"}
    told_of |= {"event_loops", "past_incidents", "ending"}
    assert set(document["runs"][0]) == told_of
    assert document["runs"][0]["verdicts"][0]["lost_seconds"] == "Infinity"


def test_an_engine_that_stands_out_is_said_and_is_no_verdict():
    note = EngineNote("outlier", "1", "", "replica 1 has 40 requests waiting")
    reported = seen("/dfx", state="clear", rank_state="live")
    (run,) = reported.runs
    run = replace(run, engines=EnginePool((), notes=(note,)))
    reported = replace(reported, snapshot=replace(reported.snapshot, runs=(run,)))
    text = diagnosis_text.text(reported, None)
    assert "  engine: replica 1 has 40 requests waiting" in text.splitlines()
    assert diagnosis_text.exit_code(reported, None) == 0


def test_while_nothing_has_been_judged_the_exit_code_is_no_0():
    reported = seen("/dfx", state="clear", rank_state="live")
    (run,) = reported.runs
    unjudged = replace(run, run="empty.jsonl", standing=UNJUDGED)
    alone = replace(reported, snapshot=replace(reported.snapshot, runs=(unjudged,)))
    both = replace(reported, snapshot=replace(reported.snapshot, runs=(run, unjudged)))
    assert diagnosis_text.exit_code(alone, None) == 2
    assert diagnosis_text.exit_code(both, None) == 0


def test_what_the_pipeline_waits_for_is_said_with_its_reason_and_finds_no_fault():
    bottleneck = Bottleneck(
        "found", "", "trainer", "tool", chain=("ranks wait", "a tool call takes 0.6 s"),
        balance="2 times", first_step=3, last_step=7,
    )  # fmt: skip
    reported = seen("/dfx", state="clear", rank_state="live")
    (run,) = reported.runs
    run = replace(run, bottleneck=bottleneck)
    reported = replace(reported, snapshot=replace(reported.snapshot, runs=(run,)))
    text = diagnosis_text.text(reported, None)
    lines = text.splitlines()
    at = lines.index("  pipeline: tool-bound, steps 3 to 7 of trainer")
    assert lines[at + 1 : at + 4] == [
        "    ranks wait", "    because: a tool call takes 0.6 s", "    2 times",
    ]  # fmt: skip
    assert diagnosis_text.exit_code(reported, None) == 0


def test_where_a_step_goes_is_said_for_a_job_whose_roles_take_turns():
    step = "A step takes 4 s: 75 % rollout, 25 % update."
    bottleneck = Bottleneck(
        "clear", step, "trainer", chain=(step, "The largest part is rollout."), balance="Left out.",
        parts=(StepPart("rollout", "work", 3.0, 0.75), StepPart("update", "work", 1.0, 0.25)),
    )  # fmt: skip
    reported = seen("/dfx", state="clear", rank_state="live")
    (run,) = reported.runs
    run = replace(run, bottleneck=bottleneck)
    reported = replace(reported, snapshot=replace(reported.snapshot, runs=(run,)))
    lines = diagnosis_text.text(reported, None).splitlines()
    at = lines.index(f"  step: {step}")
    assert lines[at + 1 : at + 3] == ["    The largest part is rollout.", "    Left out."]


@pytest.mark.parametrize("is_in_verdict", [True, False])
def test_what_glibc_keeps_is_said_once(is_in_verdict):
    heap = GlibcHeap(2.0**30, 1.3 * 2**30, 1.2 * 2**30)
    reported = seen("/dfx", state="clear", rank_state="live")
    (run,) = reported.runs
    rank = replace(run.ranks[0], host_memory=HostMemory(3.0 * 2**30, None, heap))
    blamed = (rank.rank,) if is_in_verdict else ()
    verdict = Verdict("memory", "clear", rank.role, "", ranks=blamed)
    run = replace(run, ranks=(rank,), verdicts=(verdict,))
    reported = replace(reported, snapshot=replace(reported.snapshot, runs=(run,)))
    text = diagnosis_text.text(reported, None)
    result = "malloc_trim(0) would return" in " ".join(text.split())
    assert result is not is_in_verdict


def test_what_the_devices_did_in_each_stage_is_said():
    reported = seen("/dfx", state="clear", rank_state="live")
    (run,) = reported.runs
    stages = (
        StageDevice("actor_update", 40, 40.0, 1.0, 0.62, 0.41, 655.0, 70 * 2.0**30, 1.7e9, 0.0),
        StageDevice("rollout", 20, 20.0, 0.9, None, throttled_ratio=0.5),
        StageDevice("", 1, 1.0),
    )
    rank = replace(run.ranks[0], device_names=("nvidia:3",), device_stages=stages)
    reported = replace(
        reported, snapshot=replace(reported.snapshot, runs=(replace(run, ranks=(rank,)),))
    )
    assert "GPU 3" not in diagnosis_text.text(reported, None), "healthy"
    text = diagnosis_text.text(reported, None, is_verbose=True)
    text = " ".join(text.split())
    assert (
        "(GPU 3): actor_update: SM active 62%, tensor cores 41%, 70.0 GiB, 655 W; "
        "rollout: in use 90%, clocks held down 50% of it"
    ) in text
    assert "outside all stages" not in text, "what nobody told is left out"


def test_of_many_stages_the_longest_are_said_in_their_order():
    reported = seen("/dfx", state="clear", rank_state="live")
    (run,) = reported.runs
    stages = tuple(StageDevice(f"own_{n}", 1, 1.0 + (n != 3), 0.5) for n in range(7))
    rank = replace(run.ranks[0], device_names=("nvidia:3",), device_stages=stages)
    text = "\n".join(diagnosis_text._devices_lines(replace(run, ranks=(rank,))))
    named = [word for word in text.split() if word.startswith("own_")]
    assert named == ["own_0:", "own_1:", "own_2:", "own_4:", "own_5:", "own_6:"]


def large(state: str = "found") -> Observed:
    """256 ranks of which each has something to say."""
    reported = seen("/dfx", state=state, rank_state="live")
    (run,) = reported.runs
    heap = HostMemory(3.0 * 2**30, None, GlibcHeap(2.0**30, 1.3 * 2**30, 1.2 * 2**30))
    stages = (StageDevice("actor_update", 40, 40.0, 1.0, 0.62),)
    holders = (LoopHolder("f (a.py)", 3.0, 2, 2.0),)
    lag = LagStats(9, 0.1, 0.1, 0.2, 0.9, 2.0)
    ranks = tuple(
        replace(
            run.ranks[0], rank=str(number), host_memory=heap, device_names=("nvidia:3",),
            device_stages=stages,
            event_loop=EventLoopRow(60.0, lag, None, number, holders),
        )
        for number in range(256)
    )  # fmt: skip
    evidence = tuple(f"rank {number} waited" for number in range(256))
    verdicts = (
        Verdict("crash", "clear", "actor", "No rank has died.", evidence=evidence),
        Verdict("memory", "insufficient evidence", "actor", "Too early.", evidence=evidence),
        Verdict("hang", "found", "actor", "Rank 7 is stuck.", ("7",), evidence=evidence),
    )
    run = replace(run, ranks=ranks, verdicts=verdicts)
    return replace(reported, snapshot=replace(reported.snapshot, runs=(run,)))


def test_256_ranks_are_one_screen_worst_first_and_verbose_is_all_of_it():
    lines = diagnosis_text.text(large(), None).splitlines()
    assert len(lines) <= 40
    heads = [line.split(":")[0].strip() for line in lines if line.startswith(("  hang", "  crash"))]
    assert heads == ["hang (actor)", "crash (actor)"]
    assert "    and 248 more lines of evidence: see --verbose" in lines
    late = [line for line in lines if line.startswith("  event loop of ")]
    assert [line.partition(":")[0][-3:] for line in late] == ["255", "254"], "worst first"
    assert "  and 254 more event loops were late: see --verbose" in lines
    verbose = diagnosis_text.text(large(), None, is_verbose=True).splitlines()
    assert len(verbose) > 1000


@pytest.mark.parametrize("width", [60, 80, 160])
def test_text_is_as_wide_as_the_terminal(width):
    reported = large()
    (run,) = reported.runs
    found = replace(run.verdicts[2], summary="word " * 60, evidence=("word " * 60,))
    run = replace(run, verdicts=(found,), standing=Standing("found", "word " * 60))
    reported = replace(reported, snapshot=replace(reported.snapshot, runs=(run,)))
    lines = diagnosis_text.text(reported, None, width=width).splitlines()
    lines = [line for line in lines if "word" in line]
    assert max(map(len, lines)) in range(width - 6, width + 1)


def test_the_run_with_a_finding_is_the_first_and_more_than_three_are_a_line_each():
    reported = large("clear")
    (run,) = reported.runs
    quiet = [replace(run, run=f"quiet {number}", verdicts=()) for number in range(5)]
    sick = replace(run, run="sick", standing=Standing("found", "Rank 7 is stuck."))
    reported = replace(reported, snapshot=replace(reported.snapshot, runs=(*quiet, sick)))
    heads = [line for line in diagnosis_text.text(reported, None).splitlines() if line[:3] == "run"]
    assert heads[0].startswith("run sick: 256 of 256 processes live")
    assert heads[3:] == [f"run quiet {n}: clear: {run.standing.reason}" for n in (2, 3, 4)]


def test_colours_are_put_on_states_and_change_no_text():
    text = diagnosis_text.text(large(), None)
    painted = colored(text)
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == text
    assert "  hang (actor): \x1b[1;31mfound\x1b[0m: Rank 7 is stuck." in painted
    assert "\x1b[32mclear" in painted

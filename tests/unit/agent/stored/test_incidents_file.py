"""An incident has one begin and one id, also over a restart of the agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from math import isfinite
from pathlib import Path

import pytest
from hang_scene import ending, staged
from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.agent.stored import incidents as incidents_file
from dfx_agent.agent.stored.incidents import FILE, RUN, ResumableRun
from dfx_agent.facts.rank import ExitStatus
from dfx_agent.job.incidents import conclude as conclusion
from dfx_agent.job.incidents.book import RESUMED_SECONDS, IncidentBook, StepTimes, TrackedIncident
from dfx_agent.node.segments.owned_files import state_directory
from dfx_agent.node.track import Ending
from dfx_agent.snapshot import AlertRow, Incident, Standing, Verdict
from dfx_agent.snapshot.document import reason
from dfx_agent.wire import Identity, SegmentWriter

ALERT = AlertRow(
    "r", "DfxEntropyDrift", "warning", {}, "entropy drifts", 1500.0, 9, False, (), "", "", "",  # noqa: FBT003
)  # fmt: skip
SLOW = Verdict("straggler", "found", "actor", "rank 1 makes the others wait", ranks=("1",))
HANG = replace(SLOW, kind="hang", since_seconds=1000.0)
NO_STEPS = StepTimes()


WRONG = Verdict("data", "found", "actor", "rewards belong to other samples", ranks=("0",), step=9)
STEPS = StepTimes((("actor", 9, 1900.0), ("actor", 12, 2050.0)))


def told(book: IncidentBook, *verdicts, alerts=(), now=2000.0) -> Incident:
    (only,) = book.observe(verdicts, alerts, None, NO_STEPS, now)
    return only


def after(book: IncidentBook, now: float = 2000.0) -> IncidentBook:
    """That of the next agent."""
    found = IncidentBook("r")
    found.resume(book.incidents_to_store(), now)
    return found


@pytest.mark.parametrize("told_again", [SLOW, replace(SLOW, since_seconds=1900.0), HANG])
def test_an_incident_reported_again_continues(told_again):
    book = IncidentBook("r")
    first = told(book, replace(told_again, since_seconds=1000.0), now=2000.0)
    second = told(after(after(book)), told_again, now=2100.0)
    assert (second.id, second.since_seconds, second.step) == (first.id, 1000.0, first.step)


def test_an_uncleared_incident_continues_with_the_next_agent():
    found = replace(SLOW, since_seconds=1000.0)
    busy = Verdict("straggler", "insufficient evidence", "actor", "the host is busy")
    book = IncidentBook("r")
    first = told(book, found, now=2000.0)
    assert book.observe((busy,), (), None, NO_STEPS, 2010.0) == ()
    stored = ResumableRun((), {}, book.incidents_to_store())
    following = IncidentBook("r")
    following.resume(RUN.read(RUN.dumped(stored)).open, 2020.0)
    second = told(following, replace(found, since_seconds=2100.0), now=2110.0)
    assert (second.id, second.since_seconds) == (first.id, 1000.0)
    book.observe((busy,), (), None, NO_STEPS, 2001.0 + RESUMED_SECONDS)
    assert book.incidents_to_store() == (), "it is let go"


def test_an_incident_found_at_every_step_continues():
    """Its step is the newest, not where it began."""
    book = IncidentBook("r")
    (first,) = book.observe((WRONG,), (), None, STEPS, 2000.0)
    (second,) = after(book).observe((replace(WRONG, step=12),), (), None, STEPS, 2060.0)
    assert (second.id, second.since_seconds, second.step) == (first.id, 1900.0, 9)


def test_an_alert_continues_while_its_duration_restarts():
    book = IncidentBook("r")
    first = told(book, alerts=(ALERT,))
    late = replace(ALERT, since_seconds=2050.0, since_step=12)
    following = after(book)
    assert following.observe((), (), None, NO_STEPS, 2010.0) == ()
    second = told(following, alerts=(late,), now=2050.0)
    assert (second.id, second.since_seconds, second.step) == (first.id, 1500.0, 9)
    third = told(after(following), alerts=(late,), now=2050.0 + RESUMED_SECONDS)
    assert third.id == first.id, "the second agent has seen it"
    long_after = told(after(book), alerts=(late,), now=2001.0 + RESUMED_SECONDS)
    assert long_after.id != first.id


def test_an_earlier_finding_is_not_green_until_it_can_be_judged():
    book = IncidentBook("r")
    told(book, alerts=(ALERT,))
    following = after(book)
    assert "DfxEntropyDrift" in following.awaited(2010.0)
    assert following.awaited(2015.0) == ""
    assert not after(book).observe((), (), None, NO_STEPS, 2005.0)
    again = after(book)
    told(again, alerts=(ALERT,), now=2005.0)
    assert again.awaited(2005.0) == ""


def test_before_alerts_were_evaluated_nothing_is_clear(dfx_dir, rank, monkeypatch):
    calm = Standing("clear", "No problem found.")

    def standing_of(*_, doubt, **__):
        return Standing("insufficient evidence", doubt) if doubt else calm

    monkeypatch.setattr(conclusion, "standing_of", standing_of)
    agent = Agent(Config(str(dfx_dir)))
    agent.await_alerts()
    agent.poll()
    (before,), (after_it,) = agent.snapshot().runs, agent.see_alerts(()).runs
    agent.stop()
    pending = Standing("insufficient evidence", "The alerts have not been evaluated yet.")
    assert before.standing == pending
    assert after_it.standing == calm


@pytest.mark.usefixtures("rank")
def test_alerts_that_have_not_changed_build_no_new_snapshot(dfx_dir):
    agent = Agent(Config(str(dfx_dir)))
    agent.poll()
    calm = agent.see_alerts(())
    assert agent.see_alerts(()) is calm
    firing = agent.see_alerts((ALERT,))
    assert firing is not calm
    assert agent.see_alerts((replace(ALERT),)) is firing
    agent.stop()


RANK_THAT_ENDS = """
import sys
from dfx_agent.wire import Identity, SegmentWriter
SegmentWriter(sys.argv[1], Identity(run="r", role="actor", rank=0, world_size=1)).close()
"""


def test_a_run_that_has_ended_is_known_to_the_next_agent(dfx_dir):
    found = Incident(
        "memory-1", "memory", "found", "warning", "actor", ("0",), "", "host leak", 1000.0, 20,
        None, "Rank 0 leaks.", "", "", "Rank 0 leaks.", (), (), end_seconds=4e9,
    )  # fmt: skip
    subprocess.run([sys.executable, "-c", RANK_THAT_ENDS, str(dfx_dir)], check=True)
    first = Agent(Config(str(dfx_dir)))
    first.poll()
    first._runs["r"].job.incidents.past.resume([found])
    first.stop()
    for segment in Path(dfx_dir).glob("*.seg"):
        segment.unlink()  # as an agent does some time after the end
    second = Agent(Config(str(dfx_dir)))
    second.poll()
    snapshot = second.snapshot()
    second.stop()
    assert snapshot.runs == ()
    (ended,) = snapshot.finished
    assert (ended.run, ended.standing.state) == ("r", "found")
    assert ended.ending.startswith("The run ended")
    assert [(row.id, row.is_until_run_end) for row in ended.past_incidents] == [("memory-1", True)]


RANK_THAT_DIES = """
import os, signal, sys
from dfx_agent.wire import Identity, SegmentWriter
who = Identity(run="r", role="actor", rank=int(sys.argv[2]), world_size=2)
writer = SegmentWriter(sys.argv[1], who)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_is_left_of_a_job_that_has_ended_is_not_taken_for_a_part_of_a_job(dfx_dir):
    """Files of ranks that ended in order are removed: "1 of 2 ranks are observed" was said."""
    for rank in "01":
        subprocess.run([sys.executable, "-c", RANK_THAT_DIES, str(dfx_dir), rank], check=False)
    first = Agent(Config(str(dfx_dir)))
    first.poll()
    first.snapshot()
    first.stop()
    min(Path(dfx_dir).glob("*.seg")).unlink()
    second = Agent(Config(str(dfx_dir)), reap=False)
    second.poll()
    snapshot = second.snapshot()
    second.stop()
    assert snapshot.runs == ()
    (ended,) = snapshot.finished
    assert "of 2 ranks are seen" not in ended.standing.reason


def test_a_later_attempt_that_nobody_watched_is_not_hidden_by_how_an_earlier_one_ended(dfx_dir):
    """Else its crash would be shown as the clear end of the attempt before."""
    subprocess.run([sys.executable, "-c", RANK_THAT_ENDS, str(dfx_dir)], check=True)
    first = Agent(Config(str(dfx_dir)))
    first.poll()
    first.snapshot()
    first.stop()
    for segment in Path(dfx_dir).glob("*.seg"):
        segment.unlink()
    subprocess.run([sys.executable, "-c", RANK_THAT_DIES, str(dfx_dir), "0"], check=False)
    second = Agent(Config(str(dfx_dir)), reap=False)
    second.poll()
    snapshot = second.snapshot()
    second.stop()
    assert [run.run for run in snapshot.runs] == ["r"]
    assert snapshot.finished == ()


def test_what_began_after_the_agent_before_is_another_one():
    book = IncidentBook("r")
    first = told(book, HANG, now=2000.0)
    second = told(after(book), replace(HANG, since_seconds=2050.0), now=2100.0)
    assert (second.id == first.id, second.since_seconds) == (False, 2050.0)


@pytest.fixture
def rank(dfx_dir) -> SegmentWriter:
    return SegmentWriter(str(dfx_dir), Identity(run="r", role="actor", rank=0, world_size=1))


def seen_by_an_agent(folder, alerts: tuple[AlertRow, ...]) -> tuple[Incident, ...]:
    """What it tells after one reading; it ends in an orderly way."""
    agent = Agent(Config(str(folder)))
    try:
        agent.poll()
        (run,) = agent.see_alerts(alerts).runs
        return run.incidents
    finally:
        agent.stop()


def test_the_next_agent_of_the_folder_knows_it(dfx_dir, rank):
    (first,) = seen_by_an_agent(dfx_dir, (ALERT,))
    late = replace(ALERT, since_seconds=4e9, since_step=12)
    (second,) = seen_by_an_agent(dfx_dir, (late,))
    assert (second.id, second.since_seconds, second.step) == (first.id, 1500.0, 9)


def test_a_restarted_job_of_the_same_name_has_no_incidents(dfx_dir, rank):
    (first,) = seen_by_an_agent(dfx_dir, (ALERT,))
    rank.close()
    os.unlink(rank.path)
    SegmentWriter(str(dfx_dir), Identity(run="r", role="actor", rank=0, world_size=1))
    (second,) = seen_by_an_agent(dfx_dir, (replace(ALERT, since_seconds=4e9),))
    assert (second.id == first.id, second.since_seconds) == (False, 4e9)


def test_who_only_looks_writes_nothing(dfx_dir, rank):
    agent = Agent(Config(str(dfx_dir)), reap=False)
    agent.poll()
    agent.see_alerts((ALERT,))
    agent.stop()
    assert not os.path.exists(f"{state_directory(str(dfx_dir))}/{incidents_file.NAME}")


def crash_of(agent: Agent) -> tuple:
    """All that is told of it; the seconds before the process was missing are rounded."""
    agent.poll()
    (run,) = agent.snapshot().runs
    (verdict,) = [verdict for verdict in run.verdicts if verdict.kind == "crash"]
    (incident,) = run.incidents
    reported = verdict.state, verdict.ranks, verdict.cause, verdict.summary, verdict.evidence
    return *reported, incident.id, incident.since_seconds, incident.sentence


def test_who_died_first_is_known_to_the_next_agent(dfx_dir):
    with staged(dfx_dir) as scene:
        ranks = scene.warm_up(runs={2: ending("os._exit(3)")})
        first = Agent(Config(str(dfx_dir)))
        first.poll()
        ranks[2].ends(is_reaped=False)
        first.poll()
        for rank in ranks:
            rank.dies()
        before = crash_of(first)
        assert before[:3] == ("found", ("2",), "died")
        assert "failed with exit code 3" in before[3]
        first.stop()
        second = Agent(Config(str(dfx_dir)))
        assert crash_of(second) == before
        second.stop()


LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
KEYS = st.sampled_from(
    ["format", "runs", "r", "open", "ended", "processes", "id", "ranks", "step", "since_seconds"]
)
DOCUMENTS = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5)
)
WHOLE = {
    "id": "hang-1", "kind": "hang", "role": "", "ranks": ["0"], "cause": "", "since_seconds": 1.0,
    "step": None, "seen_seconds": 2.0, "summary": "",
}  # fmt: skip
ENDING = [5, True, [None, 9], False]
ENTRY = {"processes": ["a"], "ended": {"a": ENDING}, "open": [WHOLE]}


@pytest.fixture
def stranger(dfx_dir, rank):
    """Writes a document, and gives what an agent that finds it says."""

    def said(document) -> list[str]:
        state = Path(state_directory(str(dfx_dir)))
        (state / incidents_file.NAME).write_text(json.dumps(document))
        agent = Agent(Config(str(dfx_dir)))
        agent.poll()
        agent.see_alerts(())
        messages = [p.message for p in agent.snapshot().agent.problems if p.kind == "incidents"]
        agent._folder.close()
        return messages

    return said


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ([], "cannot use incidents.json (Input should be"),
        ({"format": 2, "runs": {}}, "cannot use incidents.json (format Input should be 1"),
        ({"format": 1, "runs": {"r": {}}}, "cannot use run r in incidents.json (processes Field"),
        ({"format": 1, "runs": {"other": {}}}, None),
    ],
)
def test_a_strange_file_is_reported_in_one_line(stranger, document, says):
    messages = stranger(document)
    assert [message.startswith(says) for message in messages] == ([True] if says else [])


@given(DOCUMENTS)
def test_no_document_of_a_stranger_is_an_error(document):
    for stored in (FILE, RUN):
        with suppress(ValueError):
            stored.loaded(document)


@given(st.sampled_from(sorted(WHOLE)), LEAF)
def test_a_field_that_is_wrong_is_refused_or_taken_for_what_it_is(field, value):
    for entry in (
        {**ENTRY, "open": [{**WHOLE, field: value}]},
        {**ENTRY, "ended": {"a": [value, *ENDING[1:]]}},
    ):
        try:
            (stored,) = RUN.loaded(entry).open
        except ValueError as error:
            assert "\n" not in reason(error)  # noqa: PT017 (either is right)
        else:
            assert isinstance(stored, TrackedIncident)
            assert isfinite(stored.since_seconds + stored.seen_seconds)


def test_what_an_agent_before_this_one_wrote_is_read():
    stored = RUN.loaded(ENTRY)
    assert stored.open[0].ranks == ("0",)
    assert stored.ended == {"a": Ending(5, True, ExitStatus(None, 9), was_oom_killed=False)}  # noqa: FBT003

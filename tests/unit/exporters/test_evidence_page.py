"""The page of a run and of a kept incident: everything on it, and nothing that it could run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_source import ScriptedSource

from dfx_agent.agent.stored.evidence import DOCUMENT
from dfx_agent.exporters.evidence_page import of_incident, of_run
from dfx_agent.snapshot import (
    Incident,
    IncidentEvidence,
    OpenSpan,
    RankEvidence,
    RecordedCollective,
    RecordedThread,
    SameStack,
    SignalHistory,
    SignalSeries,
    Verdict,
)
from dfx_agent.snapshot.document import reason

HOSTILE = "<script>alert('x')</script>"
SHOWN = "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;"


def incident(text: str = "forward (train.py:7)") -> IncidentEvidence:
    """A hang with ``text`` in every place where a job chooses the words."""
    run = ScriptedSource().snapshot().runs[0]
    verdict = Verdict(
        "hang", "found", text, text, (text,), text, text, 7, 1.8e9, None, (text, text)
    )
    span = OpenSpan("collective", text, 1.8e9, 3.0, 7, 41)
    ranks = [
        replace(rank, role=text, rank=text, inflight=(span,), groups=()) for rank in run.ranks[:1]
    ]
    issued = RecordedCollective(text, text, 8, 42, text, text, text, 1.8e9 - 60, is_finished=False)
    place = RankEvidence(
        text, text, 7, 3.0, {text: 41}, text,
        (RecordedThread(text, 7, is_main=True, frames=(text, text)),), (issued,),
    )  # fmt: skip
    steps = tuple(replace(step, role=text, missing_ranks=(text,)) for step in run.steps[-2:])
    run = replace(
        run, run=text, framework=text, ranks=tuple(ranks), steps=steps, verdicts=(verdict,),
        scalars=(), signals=None, ledger=None, incidents=(),
    )  # fmt: skip
    bare = replace(place, rank="3", threads=(), recorded_collectives=())
    places, stacks = (place, bare), (SameStack((text,), (text,)),)
    return IncidentEvidence(1, text, text, 1.8e9, None, "open", verdict, run, places, stacks)


def test_nothing_that_a_job_names_is_run():
    page = of_incident(incident(HOSTILE))
    assert re.findall(r"<script|<[^>]+ on\w+=|javascript:|https?:", page) == []
    assert page.count(SHOWN) > 20


def test_what_is_known_of_an_incident_is_on_its_page():
    page = of_incident(incident())
    for result in (
        "not over when written",
        '<div class="verdict found">',
        "<tr class=blamed>",
        "forward (train.py:7) #41 (3.0 s)",
        "#42 of group forward (train.py:7)",
        "issued 60 s before, not finished",
        "No stacks of rank 3.",
        "cause: forward (train.py:7); to blame",
        "Last steps",
    ):
        assert result in page, result


def test_a_run_of_now_has_a_page_without_stacks():
    snapshot = ScriptedSource().snapshot()
    page = of_run(snapshot.runs[0], snapshot.agent, snapshot.time_seconds)
    assert "Main threads" not in page
    assert "as of 20" in page
    assert page.count("<tr>") > len(snapshot.runs[0].ranks)


def straggler(step: int = 1) -> Incident:
    summary = "Rank 2 makes the others wait."
    sentence = f"{summary} It began at step {step}. Move the rank."
    return Incident(
        "s", "straggler", "warning", "warning", "trainer", ("2",), "rollout", "", 1.8e9, step, 0.3,
        summary, "", "Move the rank.", sentence, ("DfxStraggler",), ("rank 2 worked 2 s",),
    )  # fmt: skip


def test_a_report_has_the_incidents_of_the_agent_and_every_drawing():
    source = ScriptedSource()
    snapshot = source.snapshot()
    run = snapshot.runs[0]
    over = replace(straggler(3), id="o", end_seconds=1.8e9 + 60, sentence="It was slow before.")
    steps, step = tuple(range(40)), 7
    values = tuple(0.1 * number if number != 20 else math.nan for number in steps)
    series = SignalSeries("reward", values, (None,) * 40, (None,) * 40, values)
    history = SignalHistory(steps, (False,) * 40, (series,), ())
    timeline = source.timeline(run.run, 3)
    recent = Verdict("straggler", "found", "trainer", "Rank 2 is slow.", ("2",), step=148)
    run = replace(run, incidents=(straggler(step),), past_incidents=(over,), verdicts=(recent,))
    page = of_run(run, snapshot.agent, snapshot.time_seconds, history, timeline)
    head = page[: page.index("<h2>Verdicts")]
    assert '<div class="verdict banner warn">' in head
    assert f"since step {step}, " in head
    assert "<b>Do:</b> Move the rank." in head
    assert "It was slow before." in head
    assert "148" not in page[len(head) : page.index("<h2>Ranks")], "the incident has the begin"
    drawn = re.findall(r"<figcaption>([^<]*)", head)
    assert drawn[0] == "reward: 3.9 at step 39, 0 to 3.9 since step 0"
    for result in (
        "Last step of each rank",
        "Timeline of the latest steps",
        "Work of each rank in",
    ):
        assert any(text.startswith(result) for text in drawn), result
    lines = re.findall(r'<polyline class="(\w+)"', head)
    assert lines == ["value", "value", "mark", "mark"], "NaN ends a line; two incidents began"
    assert head.count("<rect") > len(run.ranks) * len(run.steps)
    assert re.findall(r"<script|https?:", page) == []


def test_a_report_of_1024_ranks_is_small_and_has_the_blamed_rank_first():
    snapshot = ScriptedSource(1024, num_past_steps=3).snapshot()
    run = snapshot.runs[0]
    run = replace(run, incidents=(replace(straggler(), ranks=("777",), role=run.ranks[0].role),))
    page = of_run(run, snapshot.agent, snapshot.time_seconds)
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", page)
    assert labels[0].endswith(" 777")
    assert len(labels) <= 32 + 64
    assert len(page) < 2_000_000


def test_a_file_is_read_as_it_was_written():
    text = DOCUMENT.dumped(incident(), indent=1)
    assert json.loads(text)["format"] == 1
    assert DOCUMENT.dumped(DOCUMENT.read(text), indent=1) == text


PARTS: Mapping[str, Any] = json.loads(DOCUMENT.dumped(incident()))


@pytest.mark.parametrize("missing", sorted(PARTS))
def test_a_file_that_lacks_a_part_is_refused_with_its_name(missing):
    text = json.dumps({name: part for name, part in PARTS.items() if name != missing})
    with pytest.raises(ValueError, match="Field required") as caught:
        DOCUMENT.read(text.encode())
    assert reason(caught.value) == f"{missing} Field required"


def test_a_file_of_an_agent_that_recorded_no_collectives_is_read():
    places = [
        {name: part for name, part in place.items() if name != "recorded_collectives"}
        for place in PARTS["places"]
    ]
    read = DOCUMENT.read(json.dumps({**PARTS, "places": places}).encode())
    assert [place.recorded_collectives for place in read.places] == [(), ()]


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=9) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.sampled_from(sorted(PARTS)), JSON)
def test_a_broken_file_is_a_page_or_one_line(part, value):
    text = json.dumps({**PARTS, part: value}).encode()
    try:
        result = of_incident(DOCUMENT.read(text)).partition("\n")[0]
    except (ValueError, OverflowError) as error:
        result = reason(error)
    assert result
    assert "\n" not in result


@given(st.binary(max_size=60))
def test_bytes_that_are_no_document_are_refused(data):
    with pytest.raises(ValueError, match=r".") as caught:
        DOCUMENT.read(data)
    assert "\n" not in reason(caught.value)

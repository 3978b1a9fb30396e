"""Spans of steps that come late, are too many, or whose pieces are gone; a library that is not."""

import math
import socket
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from dfx_agent.exporters.otel import push as otel
from dfx_agent.exporters.otel import spans as otel_spans
from dfx_agent.exporters.otel.push import OtlpPush
from dfx_agent.exporters.otel.session import resource_of
from dfx_agent.exporters.otel.spans import SpansPart
from dfx_agent.snapshot import Piece, StepCell, StepRow, TimelineRow, TimeSplit


class Job:
    """A job as the agent would tell it; what tests change is public."""

    def __init__(self):
        self.steps = []
        self.num_ranks = 2
        self.num_kept = 64
        self.state = "live"
        self.attempt = 0

    def passes(self, *steps):
        self.steps += steps

    def runs(self):
        ranks = [SimpleNamespace(state=self.state)] * self.num_ranks
        return [SimpleNamespace(run="r", attempt=self.attempt, ranks=ranks)]

    def closed_steps(self, run, after_step):
        cells = tuple(StepCell(str(rank), TimeSplit(1.0), {}) for rank in range(self.num_ranks))
        return tuple(
            StepRow(step, "trainer", step * 1.0, step + 1.0, (), None, cells) for step in self.steps
        )

    def timeline(self, run, num_steps):
        last = self.steps[-min(num_steps, self.num_kept) :]
        return tuple(
            TimelineRow("trainer", str(rank), step, step * 1.0, step + 1.0, 0, (
                Piece("stage", "rollout", step * 1.0, step + 0.5),
                Piece("idle", "", step + 0.5, step + 1.0),
            ))
            for rank in range(self.num_ranks) for step in last
        )  # fmt: skip


@pytest.fixture
def job():
    return Job()


@pytest.fixture
def part():
    part = SpansPart("http://127.0.0.1:1/v1/traces", "here", "0")
    yield part
    part.shutdown()


def told(part):
    """(step, name) of what waits, and forget it."""
    spans = list(part._waiting)
    part.forget(len(spans))
    return [(span.attributes["dfx.step"], span.name) for span in spans]


STEP = ["rollout", "rank", "rollout", "rank", "step"]


def test_the_last_step_waits_for_the_next_or_the_end(part, job):
    job.passes(1)
    part.collect(job, job.runs(), is_last=False)
    assert told(part) == []
    job.passes(2)
    part.collect(job, job.runs(), is_last=False)
    assert told(part) == [(1, name) for name in STEP]
    part.collect(job, job.runs(), is_last=False)
    assert told(part) == []
    job.state = "exited"
    part.collect(job, job.runs(), is_last=False)
    assert told(part) == [(2, name) for name in STEP]
    part.collect(job, job.runs(), is_last=True)
    assert told(part) == []


def test_a_new_attempt_exports_its_steps_in_other_traces(part, job):
    job.passes(1, 2)
    part.collect(job, job.runs(), is_last=True)
    (first,) = {span.context.trace_id for span in list(part._waiting)[:5]}
    part.forget(10)
    job.attempt = 1
    part.collect(job, job.runs(), is_last=True)
    assert first not in {span.context.trace_id for span in part._waiting}
    assert len(told(part)) == 10


def test_a_restarted_agent_makes_the_same_ids(part, job):
    job.passes(1, 2)
    again = SpansPart("http://127.0.0.1:1/v1/traces", "there", "0")
    for item in (part, again):
        item.collect(job, job.runs(), is_last=True)
    again.shutdown()
    first, second = ([span.context for span in item._waiting] for item in (part, again))
    assert [(c.trace_id, c.span_id) for c in first] == [(c.trace_id, c.span_id) for c in second]
    assert len({c.span_id for c in first}) == len(first)


def test_steps_without_pieces_are_counted_by_rank(part, job):
    job.num_kept = 3
    job.passes(*range(1, 11))
    part.collect(job, job.runs(), is_last=True)
    assert part.num_missed_steps == 7 * job.num_ranks
    assert [name for _, name in told(part)].count("step") == 10


def test_only_the_last_steps_of_a_long_job_are_exported(part, job):
    job.passes(*range(1, 201))
    part.collect(job, job.runs(), is_last=True)
    assert part.num_missed_steps == 0
    assert sorted({step for step, _ in told(part)}) == list(range(137, 201))


def test_the_oldest_spans_are_given_up_and_counted(part, job, monkeypatch):
    monkeypatch.setattr(otel_spans, "_MAX_SPANS", 12)
    job.passes(1, 2, 3)
    part.collect(job, job.runs(), is_last=True)
    assert (part.num_waiting, part.num_dropped_spans) == (12, 3)
    num_spans, _ = part.prepare()
    assert num_spans == 12


def test_a_run_that_is_gone_meanwhile_is_passed_over(part, job, monkeypatch):
    def gone(run, after_step):
        raise KeyError(run)

    monkeypatch.setattr(job, "closed_steps", gone)
    part.collect(job, job.runs(), is_last=True)
    assert part.num_waiting == 0


def named(job, **changes):
    """A run of this job; its rows say what ``changes`` say."""
    strange = Job()
    strange.passes(*job.steps)
    rows = strange.closed_steps("strange", None)
    strange.closed_steps = lambda run, after_step: [replace(row, **changes) for row in rows]
    return strange


class TwoJobs:
    """A strange run, told before a healthy one."""

    def __init__(self, strange, healthy):
        self.jobs = {"strange": strange, "r": healthy}

    def runs(self):
        return [SimpleNamespace(run=run, attempt=0, ranks=job.runs()[0].ranks)
                for run, job in self.jobs.items()]  # fmt: skip

    def closed_steps(self, run, after_step):
        return self.jobs[run].closed_steps(run, after_step)

    def timeline(self, run, num_steps):
        return self.jobs[run].timeline(run, num_steps)


def broken(run, num_steps):
    raise RuntimeError("oops")


@pytest.mark.parametrize("how", ["timeline", "begin", "end"])
def test_a_strange_run_costs_no_other_its_spans(part, job, how):
    job.passes(1, 2)
    changes = {} if how == "timeline" else {f"{how}_seconds": math.nan}
    both = TwoJobs(named(job, **changes), job)
    if how == "timeline":
        both.jobs["strange"].timeline = broken
    part.collect(both, both.runs(), is_last=True)
    assert {span.attributes["dfx.run"] for span in part._waiting} == {"r"}
    assert part.num_waiting == 2 * len(STEP)
    assert part.num_missed_steps == (0 if how == "timeline" else 4)


def test_text_that_is_no_utf8_costs_no_batch(part, job):
    job.passes(1)
    strange = named(job, missing_ranks=("\udcff",))
    strange.timeline = lambda run, num_steps: tuple(
        replace(row, pieces=(replace(row.pieces[0], name="roll\udcff"),))
        for row in job.timeline(run, num_steps)
    )
    both = TwoJobs(strange, job)
    part.collect(both, both.runs(), is_last=True)
    spans = list(part._waiting)
    assert encode_spans(spans).SerializeToString()
    assert "roll\\udcff" in {span.name for span in spans}


@pytest.mark.parametrize(
    ("instance", "shown"),
    [
        ("127.0.0.1:9931", f"{socket.gethostname()}:9931"),
        ("[::1]:9931", f"{socket.gethostname()}:9931"),
        ("node-a:9931", "node-a:9931"),
    ],
)
def test_an_instance_has_another_name_on_each_machine(instance, shown):
    assert resource_of(instance, "1.0").attributes["service.instance.id"] == shown


def test_an_internal_error_is_logged_once_and_the_push_continues(job, monkeypatch):
    monkeypatch.setattr(otel, "_STEPS_EVERY_SECONDS", 0.01)
    result = []
    push = OtlpPush("http://127.0.0.1:1", ("traces",), 0.01, lambda *words: result.append(words))
    num_asked = 0

    def snapshot():
        nonlocal num_asked
        num_asked += 1
        raise RuntimeError("oops")

    job.snapshot = snapshot
    push.start(job, list, "here")
    deadline = time.monotonic() + 10
    while num_asked < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert push.stop()
    assert num_asked >= 3
    assert result == [("push", "OpenTelemetry push failed (RuntimeError: oops)")]

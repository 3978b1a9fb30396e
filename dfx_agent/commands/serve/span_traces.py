"""Assembles the spans that processes of a job send into steps of ranks. Pure.

A trace is one step if its root names the step: ROLL's ``pipeline_step`` with ``global_step``.
Workers send their part in a trace of the same id, seconds later. So a trace waits for its root,
and then for late workers.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dfx_agent.base.text import whole_number
from dfx_agent.hub.otlp.traces import (
    HOST,
    INSTANCE,
    RANKS,
    ROLES,
    RUNS,
    SERVICE,
    STEPS,
    ReceivedSpan,
)

# OpenTelemetry's processor sends every 5 s
_SETTLED_SECONDS, _ORPHAN_SECONDS = 6.0, 900.0
_MAX_SPANS, _MAX_OF_TRACE = 100_000, 20_000
_MAX_STEP = (1 << 63) - 1
_NUMBER_AT_END = re.compile(r"(?:^|[-_])(\d{1,7})$")

# names that ROLL gives (8eb27cc): stages of the catalogue, "" is no stage of its own
_STAGES = {
    "pipeline_step": "",
    "exec": "",
    "stop_server": "rollout",
    "generate": "rollout",
    "rollout": "rollout",
    "get_batch": "rollout",
    "shrink_sampler": "rollout",
    "generate_and_reward": "rollout",
    "model_update": "weight_sync",
    "validation": "validation",
    "val": "validation",
    "val_generate": "validation",
    "ref_log_probs": "ref_logprob",
    "cal_ref_log_probs": "ref_logprob",
    "old_log_probs_and_values": "old_logprob",
    "cal_old_log_probs_values": "old_logprob",
    "reward_postprocess": "reward",
    "compute_token_reward": "reward",
    "get_token_reward": "reward",
    "cal_token_reward": "reward",
    "cal_response_norm_rewards": "reward",
    "get_sample_level_mask": "advantage",
    "cal_response_level_mask": "advantage",
    "compute_advantage": "advantage",
    "train": "actor_update",
    "worker.train_step": "actor_update",
    "worker.compute_log_probs": "old_logprob",
    "worker.compute_values": "values",
    "worker.compute_rewards": "reward",
    "worker.generate": "rollout",
    "worker.start_model_update": "weight_sync",
    "worker.load_states": "offload",
    "worker.offload_states": "offload",
    "worker.do_checkpoint": "checkpoint",
}
_SERVICES = {"actor_train": "actor", "actor_infer": "rollout", "reference": "ref"}
_OF_ROLE = {("critic", "worker.train_step"): "critic_update"} | {
    ("ref", "worker.compute_log_probs"): "ref_logprob"
}


class SpanSender(NamedTuple):
    """A rank of a run that sends spans; ``run`` is "" if the spans do not name it."""

    run: str
    role: str
    rank: int
    host: str


class Stage(NamedTuple):
    """A stretch of a stage, on Unix nanoseconds; ``parent`` is the number of the one around it."""

    name: str
    begin_ns: int
    end_ns: int
    number: int
    parent: int


@dataclass(frozen=True)
class RankSteps:
    """What one rank did in one trace. ``step`` is None where nothing says which it is."""

    sender: SpanSender
    step: int | None
    begin_ns: int
    end_ns: int
    stages: tuple[Stage, ...]


@dataclass
class _Trace:
    since_seconds: float
    spans: list[ReceivedSpan] = field(default_factory=list)
    root: ReceivedSpan | None = None
    due_seconds: float | None = None


class SpanTraces:
    """``add`` spans as they come; ``whole`` are those of traces that are over.

    ``num_left_out``: spans that cannot be joined to a rank, of strange times, or beyond bounds;
    ``first``: the first of them, and why.
    """

    def __init__(self) -> None:
        self.num_left_out = self.num_taken = 0
        self.first = ""
        self._traces: OrderedDict[bytes, _Trace] = OrderedDict()
        self._num_spans = 0

    def add(self, spans: Iterable[ReceivedSpan], now_seconds: float) -> int:
        """How many of them are left out."""
        before = self.num_left_out
        for span in spans:
            why = _unusable(span)
            trace = self._traces.get(span.trace)
            if not why and trace is not None and len(trace.spans) >= _MAX_OF_TRACE:
                why = f"more than {_MAX_OF_TRACE:,} spans of one trace"
            if why:
                self.leave_out(span.name, why)
                continue
            if trace is None:
                trace = self._traces[span.trace] = _Trace(now_seconds)
            self._num_spans += 1
            trace.spans.append(span)
            if not span.parent:
                trace.root, trace.due_seconds = span, now_seconds + _SETTLED_SECONDS
        while self._num_spans > _MAX_SPANS:
            _, oldest = self._traces.popitem(last=False)
            self._num_spans -= len(oldest.spans)
            why = f"more than {_MAX_SPANS:,} spans whose traces are not over"
            self.leave_out(oldest.spans[0].name, why, len(oldest.spans))
        return self.num_left_out - before

    def leave_out(self, name: str, why: str, num_spans: int = 1) -> None:
        self.num_left_out += num_spans
        self.first = self.first or f"{name}: {why}"

    def whole(self, now_seconds: float) -> list[RankSteps]:
        """Steps of the traces that are over, oldest first; each step is returned once."""
        over = [
            key
            for key, trace in self._traces.items()
            if now_seconds >= (trace.due_seconds or trace.since_seconds + _ORPHAN_SECONDS)
        ]
        found: list[RankSteps] = []
        for key in over:
            trace = self._traces.pop(key)
            self._num_spans -= len(trace.spans)
            self.num_taken += len(trace.spans)
            found += _of_trace(trace)
        return sorted(found, key=lambda steps: steps.end_ns)


def sender_of(span: ReceivedSpan) -> SpanSender | None:
    """The rank that sent ``span``; None if the span names no role or no rank."""
    attributes = {**span.resource, **span.attributes}
    service = str(attributes.get(SERVICE, ""))
    role = str(_first(attributes, ROLES) or _SERVICES.get(service, service))
    if not role or role.startswith("unknown_service"):
        return None
    rank = _rank(attributes)
    if rank is None:
        return None
    run, host = _first(attributes, RUNS), attributes.get(HOST, "")
    return SpanSender(str(run or ""), role, rank, str(host))


def _rank(attributes: Mapping[str, str | int]) -> int | None:
    """As it is said; else the number at the end of the instance; one alone is rank 0."""
    given = _first(attributes, RANKS)
    if given is not None:
        return whole_number(str(given))
    instance = attributes.get(INSTANCE)
    if instance is None:
        return 0
    found = _NUMBER_AT_END.search(str(instance))
    return int(found[1]) if found else None


def _first(attributes: Mapping[str, str | int], names: Iterable[str]) -> str | int | None:
    return next((attributes[name] for name in names if name in attributes), None)


def _unusable(span: ReceivedSpan) -> str:
    if not 0 < span.begin_ns <= span.end_ns < 1 << 63 or not span.trace or not span.span:
        return "its times or its ids make no sense"
    if sender_of(span) is None:
        return "it names no role or no rank: set dfx.role and dfx.rank on its resource"
    return ""


def _of_trace(trace: _Trace) -> Iterator[RankSteps]:
    step = None if trace.root is None else _first(trace.root.attributes, STEPS)
    number = None if step is None else whole_number(str(step), _MAX_STEP)
    by_sender: dict[SpanSender, list[ReceivedSpan]] = {}
    for span in trace.spans:
        sender = sender_of(span)
        if sender is not None:
            by_sender.setdefault(sender, []).append(span)
    run = next((sender.run for sender in by_sender if sender.run), "")
    for sender, spans in by_sender.items():
        bounds = [*spans, trace.root] if trace.root is not None and number is not None else spans
        yield RankSteps(
            sender._replace(run=sender.run or run),
            number,
            min(span.begin_ns for span in bounds),
            max(span.end_ns for span in bounds),
            tuple(_stages(sender.role, spans, trace.root if number is not None else None)),
        )


def _stages(role: str, spans: Iterable[ReceivedSpan], step: ReceivedSpan | None) -> Iterator[Stage]:
    """Those that are stages, each within the one around it; ``step`` is the step itself."""
    ordered = sorted(spans, key=lambda span: (span.begin_ns, -span.end_ns))
    names = {span.span: "" if span is step else _stage(role, span.name) for span in ordered}
    parents = {span.span: span.parent for span in ordered}
    numbers: dict[bytes, int] = {}
    for span in ordered:
        if names[span.span]:
            numbers[span.span] = len(numbers) + 1
    for span in ordered:
        if span.span in numbers:
            around, seen = span.parent, 0
            while around in parents and around not in numbers and seen < len(parents):
                around, seen = parents[around], seen + 1
            number = numbers[span.span]
            parent = numbers.get(around, 0)
            parent = parent if parent < number else 0
            yield Stage(names[span.span], span.begin_ns, span.end_ns, number, parent)


def _stage(role: str, name: str) -> str:
    return _OF_ROLE.get((role, name)) or _STAGES.get(name, name)

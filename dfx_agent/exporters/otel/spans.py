"""Closed steps as traces: one trace per step of a role, one span per rank, its pieces inside.

Ids are derived from the content of a span. So a board can compute them, and a restarted agent sends
the same spans again, not new ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Span, set_span_in_context

from dfx_agent.base.log import OncePerPlace
from dfx_agent.exporters.otel.session import SCOPE, BoundedSession, resource_of
from dfx_agent.snapshot import RunRow, StepRow, TimelineRow
from dfx_agent.snapshot.agent import TimelineSource

_MAX_STORED_STEPS = 64  # of so many the agent has pieces
_MAX_SPANS, _SPANS_AT_ONCE = 20_000, 2_000

Attributes = Mapping[str, str | int]
# of one role in one attempt of a run
_Of = tuple[str, int, str]


def open_part(url: str, instance: str, version: str) -> SpansPart:
    return SpansPart(url, instance, version)


class SpansPart:
    """Pushes spans to one receiver."""

    def __init__(self, url: str, instance: str, version: str) -> None:
        self._exporter = OTLPSpanExporter(endpoint=url, session=BoundedSession())
        self._maker = _Maker(instance, version)
        self._pushed: dict[_Of, int] = {}
        self._waiting: deque[ReadableSpan] = deque()
        self.num_dropped_spans = self.num_missed_steps = 0
        self._log = OncePerPlace("dfx_agent.otlp")

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def collect(self, source: TimelineSource, runs: Iterable[RunRow], *, is_last: bool) -> None:
        """Steps that are complete; the latest step may still get ranks."""
        for run in runs:
            has_ended = all(rank.state not in {"live", "unknown"} for rank in run.ranks)
            try:
                self._collect(source, run, is_last=is_last or has_ended)
            except KeyError:  # the agent has dropped the run meanwhile
                continue
            except Exception as error:  # noqa: BLE001 (other runs are not affected)
                self._log.error(f"spans of run {run.run}", error)
        while len(self._waiting) > _MAX_SPANS:
            self._waiting.popleft()
            self.num_dropped_spans += 1

    def prepare(self) -> tuple[int, Callable[[], SpanExportResult]]:
        """(number of spans, function that pushes them)."""
        batch = list(islice(self._waiting, _SPANS_AT_ONCE))
        return len(batch), lambda: self._exporter.export(batch)

    def forget(self, num_spans: int) -> None:
        """The spans were accepted."""
        for _ in range(num_spans):
            self._waiting.popleft()

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _collect(self, source: TimelineSource, run: RunRow, *, is_last: bool) -> None:
        by_role: dict[str, list[StepRow]] = {}
        for row in source.closed_steps(run.run, None):
            by_role.setdefault(row.role, []).append(row)
        fresh = [
            row
            for role, rows in by_role.items()
            for row in (rows if is_last else rows[:-1])[-_MAX_STORED_STEPS:]
            if row.step > self._pushed.get((run.run, run.attempt, role), -1)
        ]
        if not fresh:
            return
        pieces = _by_step(source.timeline(run.run, min(len(fresh) + 2, _MAX_STORED_STEPS)))
        for row in fresh:
            ranks = pieces.get((row.role, row.step), [])
            self.num_missed_steps += max(0, len(row.cells) - len(ranks))
            self._waiting.extend(self._spans(run, row, ranks))
            key = run.run, run.attempt, row.role
            self._pushed[key] = max(row.step, self._pushed.get(key, -1))

    def _spans(self, run: RunRow, row: StepRow, ranks: Sequence[TimelineRow]) -> list[ReadableSpan]:
        """Spans of one step; none if they cannot be built, which counts as missed."""
        try:
            return self._maker.of_step(run, row, ranks)
        except Exception as error:  # noqa: BLE001 (other steps are not affected)
            self._log.error(f"spans of a step of run {run.run}", error)
            self.num_missed_steps += len(ranks)
            return []


def _by_step(rows: Iterable[TimelineRow]) -> dict[tuple[str, int], list[TimelineRow]]:
    found: dict[tuple[str, int], list[TimelineRow]] = {}
    for row in rows:
        if row.step is not None and row.end_seconds is not None:
            found.setdefault((row.role, row.step), []).append(row)
    return found


class _Ids(IdGenerator):
    """Generates ids that are set in advance."""

    def __init__(self) -> None:
        self.trace: tuple[str | int, ...] = ()
        self.span: tuple[str | int, ...] = ()

    def generate_trace_id(self) -> int:
        return _digest(16, self.trace)

    def generate_span_id(self) -> int:
        return _digest(8, (*self.trace, *self.span))


class _Ended(SpanProcessor):
    """Collects ended spans, children before parents."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class _Maker:
    """Builds the spans of a step."""

    def __init__(self, instance: str, version: str) -> None:
        self._ids, self._ended = _Ids(), _Ended()
        provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=resource_of(instance, version),
            shutdown_on_exit=False,
            id_generator=self._ids,
        )
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer(SCOPE, version)

    def of_step(
        self, run: RunRow, step: StepRow, ranks: Iterable[TimelineRow]
    ) -> list[ReadableSpan]:
        """``ranks``: this step of each rank of the role whose pieces are attributes."""
        self._ended.spans = []  # of a step that was given up
        self._ids.trace = run.run, run.attempt, step.role, step.step
        attributes: dict[str, str | int] = {
            "dfx.run": run.run, "dfx.role": step.role, "dfx.step": step.step
        }  # fmt: skip
        missing = {"dfx.missing_ranks": ",".join(step.missing_ranks)} if step.missing_ranks else {}
        root = self._begin(
            "step", ("step",), step.begin_seconds, {**attributes, **missing}, Context()
        )
        for rank in ranks:
            self._add_rank(rank, attributes, set_span_in_context(root, Context()))
        root.end(_ns(step.end_seconds))
        ended, self._ended.spans = self._ended.spans, []
        return ended

    def _add_rank(self, row: TimelineRow, attributes: Attributes, parent: Context) -> None:
        attributes = {**attributes, "dfx.rank": row.rank}
        omitted = {"dfx.omitted_pieces": row.num_omitted_pieces} if row.num_omitted_pieces else {}
        span = self._begin(
            "rank", (row.rank,), row.begin_seconds, {**attributes, **omitted}, parent
        )
        inside = set_span_in_context(span, Context())
        for number, piece in enumerate(row.pieces):
            if piece.kind != "idle":
                name = piece.name if piece.kind == "stage" else f"wait {piece.name}"
                kind = {**attributes, "dfx.kind": piece.kind}
                child = self._begin(name, (row.rank, number), piece.begin_seconds, kind, inside)
                child.end(_ns(piece.end_seconds))
        span.end(_ns(row.end_seconds or row.begin_seconds))

    def _begin(
        self,
        name: str,
        key: Sequence[str | int],
        begin_seconds: float,
        attributes: Attributes,
        parent: Context,
    ) -> Span:
        """Text that a receiver can read: one invalid name must not lose a whole batch."""
        self._ids.span = tuple(key)
        start = self._tracer.start_span
        encoded = {key: _text(value) for key, value in attributes.items()}
        return start(_text(name), parent, attributes=encoded, start_time=_ns(begin_seconds))


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "backslashreplace").decode()


def _digest(size: int, parts: tuple[str | int, ...]) -> int:
    """An id derived from these parts; never 0, which is no valid id."""
    text = _text("\0".join(map(str, parts))).encode()
    return int.from_bytes(blake2b(text, digest_size=size).digest(), "big") or 1

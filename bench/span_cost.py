"""What a stage costs the training thread, enter and exit together, beside OpenTelemetry's span."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence

import torch  # noqa: F401
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import dfx_agent.shim as dfx
from bench.calls import EMPTY_CALL, Case, block_means_ns, single_calls
from bench.measurement import Bar, Result, median_of, of_samples, report
from dfx_agent.shim import recorder

SPANS_PER_BLOCK = 500  # fewer than a batch of OpenTelemetry, so its export is not timed


class _NoExport(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


class _Switch:
    """Takes the guest away for a block and brings it back."""

    def __init__(self) -> None:
        self._writer = recorder.current

    def off(self) -> None:
        recorder.current = None

    def on(self) -> None:
        recorder.current = self._writer


def measure(*, quick: bool) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm") as folder:
        dfx.init(run="bench", directory=folder)
        dfx.set_step(7)
        processor = BatchSpanProcessor(_NoExport())
        provider = TracerProvider()
        provider.add_span_processor(processor)
        names = {
            "stage": dfx.stage,
            "decorated": dfx.stage("rollout")(lambda: None),
            "start": provider.get_tracer("bench").start_as_current_span,
        }
        cases = _cases(processor)
        means = block_means_ns(cases, names, 5 if quick else 300, SPANS_PER_BLOCK)
        timed = [case for case in cases if case.name in {"dfx.stage", "OpenTelemetry span"}]
        singles = single_calls(timed, names, 2 if quick else 100, SPANS_PER_BLOCK)
        provider.shutdown()
        dfx.shutdown()
    return [*_p50s(means), *_p99s(singles.p99s_ns, singles.clock_ns)]


def _cases(processor: BatchSpanProcessor) -> list[Case]:
    switch = _Switch()
    stage = "with stage('rollout'): pass"
    return [
        Case("dfx.stage", stage),
        Case("dfx.stage as decorator", "decorated()"),
        Case("dfx.stage, not initialised", stage, switch.off, switch.on),
        Case("decorator, not initialised", "decorated()", switch.off, switch.on),
        Case(
            "OpenTelemetry span",
            "with start('rollout'): pass",
            after=lambda: (processor.force_flush(), None)[1],
        ),
        EMPTY_CALL,
    ]


def _p50s(means: dict[str, list[float]]) -> list[Result]:
    microseconds = {name: [ns / 1e3 for ns in blocks] for name, blocks in means.items()}
    telemetry = median_of("OpenTelemetry span", microseconds["OpenTelemetry span"])
    empty = median_of(EMPTY_CALL.name, microseconds[EMPTY_CALL.name])
    rows = []
    for name, samples in microseconds.items():
        is_on = name in {"dfx.stage", "dfx.stage as decorator"}
        if name != EMPTY_CALL.name:
            rows.append(
                of_samples(
                    f"{name}, p50",
                    samples,
                    "us",
                    baseline=telemetry if is_on else empty,
                    bar=Bar(3.0) if is_on else None,
                    note=f"enter + exit, blocks of {SPANS_PER_BLOCK}",
                )
            )
    return rows


def _p99s(p99s_ns: dict[str, list[float]], clock_ns: float) -> list[Result]:
    microseconds = {name: [ns / 1e3 for ns in blocks] for name, blocks in p99s_ns.items()}
    telemetry = median_of("OpenTelemetry span", microseconds["OpenTelemetry span"])
    note = f"single calls; clock's own {clock_ns:.0f} ns taken off"
    samples = microseconds["dfx.stage"]
    return [of_samples("dfx.stage, p99", samples, "us", baseline=telemetry, note=note)]


if __name__ == "__main__":
    report(measure)

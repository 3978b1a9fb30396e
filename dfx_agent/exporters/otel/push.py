"""Pushes metrics and steps to an OpenTelemetry receiver: OTLP over HTTP, protobuf.

It runs in its own thread: a slow or missing receiver delays nothing else. Metrics are pushed again
with their latest values. Spans are stored for a while and retried; dropped spans are counted.
Headers, certificates, compression, timeout and further resource attributes come from the standard
``OTEL_*`` variables. The library is imported when a push is asked for, not before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any

from prometheus_client.metrics_core import Metric as Family

from dfx_agent import __version__
from dfx_agent.base.errors import ConfigError
from dfx_agent.exporters.state import OtlpRow
from dfx_agent.snapshot import RunRow
from dfx_agent.snapshot.agent import TimelineSource

METRICS, TRACES = "metrics", "traces"
# signal -> the file of this folder that pushes it and imports the library
_FILES = {METRICS: "metrics", TRACES: "spans"}
STOP_SECONDS = 5.0
_STEPS_EVERY_SECONDS = 2.0
_LIBRARY = "opentelemetry.exporter.otlp"

# (signal, one line for people; "" when it works again)
Report = Callable[[str, str], None]
Families = Callable[[], Iterable[Family]]


class OtlpPush:
    """An ``OtlpSource``. ConfigError where a signal is unknown."""

    def __init__(
        self, endpoint: str, signals: Sequence[str], every_seconds: float, report: Report
    ) -> None:
        for signal in signals:
            if signal not in _FILES:
                raise ConfigError(f"otlp_signals: no {signal!r}: there are {', '.join(_FILES)}")
        files = [import_module(f"{__package__}.{_FILES[signal]}") for signal in signals]
        self._open: dict[str, Any] = dict(zip(signals, files, strict=True))
        self._endpoint = endpoint.rstrip("/")
        self._every_seconds = every_seconds
        self._report, self._reason = report, _Reason()
        self._shares = {s: _Share(s, self._endpoint, report, self._reason) for s in signals}
        self._parts: dict[str, Any] = {}
        self._retry_seconds = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="dfx-otlp", daemon=True)

    def start(self, source: TimelineSource, families: Families, instance: str) -> None:
        """``families``: as in a scrape; ``instance``: host and port of this agent."""
        library = logging.getLogger(_LIBRARY)
        library.addHandler(self._reason)
        library.propagate = False
        self._source, self._families = source, families
        for signal, module in self._open.items():
            url = f"{self._endpoint}/v1/{signal}"
            self._parts[signal] = module.open_part(url, instance, __version__)
        self._thread.start()

    def stop(self) -> bool:
        """Push current values first, if they are accepted. Returns whether that was in time."""
        self._stop.set()
        for signal, part in self._parts.items():
            if not self._shares[signal].is_active:
                part.shutdown()  # the receiver does not accept it: do not wait for a retry
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
        return not self._thread.is_alive()

    def rows(self) -> tuple[OtlpRow, ...]:
        found = []
        for signal, share in self._shares.items():
            spans = self._parts.get(signal) if signal == TRACES else None
            lost = (spans.num_dropped_spans, spans.num_missed_steps) if spans else (0, 0)
            found.append(OtlpRow(signal, share.is_active, share.num_sent, share.num_failed, *lost))
        return tuple(found)

    def _loop(self) -> None:
        runs: tuple[RunRow, ...] = ()
        is_last, due, broken = False, 0.0, ""
        while not is_last:
            is_last = self._stop.wait(_STEPS_EVERY_SECONDS)
            try:
                if is_last or time.monotonic() >= due:
                    due = time.monotonic() + self._every_seconds
                    runs = self._source.snapshot().runs
                    self._push_metrics(is_last=is_last)
                self._push_spans(runs, is_last=is_last)
            except Exception as error:  # noqa: BLE001 (our own fault: logged, then continued)
                before, broken = broken, f"{type(error).__name__}: {error}"
                if broken != before:
                    self._report("push", f"OpenTelemetry push failed ({broken})")

    def _push_metrics(self, *, is_last: bool) -> None:
        part, share = self._parts.get(METRICS), self._shares.get(METRICS)
        if part is not None and share is not None and (share.is_active or not is_last):
            num_points, export = part.prepare(self._families())
            share.take(num_points, export)

    def _push_spans(self, runs: tuple[RunRow, ...], *, is_last: bool) -> None:
        part, share = self._parts.get(TRACES), self._shares.get(TRACES)
        if part is None or share is None:
            return
        part.collect(self._source, runs, is_last=is_last)
        may_try = share.is_active or (not is_last and time.monotonic() >= self._retry_seconds)
        while part.num_waiting and may_try:
            num_spans, export = part.prepare()
            if not share.take(num_spans, export):
                self._retry_seconds = time.monotonic() + self._every_seconds
                return
            part.forget(num_spans)


class _Reason(logging.Handler):
    """The library's first message about a failure; later messages are about its retries."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = self.text or " ".join(record.getMessage().split())


class _Share:
    """State of one signal; a failure is counted, and reported when it begins."""

    def __init__(self, signal: str, target: str, report: Report, reason: _Reason) -> None:
        self.is_active = True
        self.num_sent = self.num_failed = 0
        self._signal, self._target = signal, target
        self._report, self._reason = report, reason

    def take(self, num_items: int, export: Callable[[], Any]) -> bool:
        """Whether the receiver accepted the batch."""
        self._reason.text = ""
        try:
            is_taken = bool(export().name == "SUCCESS")
        except Exception as error:  # noqa: BLE001 (whatever the library raises is the reason)
            self._reason.text, is_taken = f"{type(error).__name__}: {error}", False
        if is_taken:
            self.num_sent += num_items
        else:
            self.num_failed += 1
        if is_taken != self.is_active:
            self.is_active = is_taken
            why = self._reason.text or "no reason given"
            what = f"OpenTelemetry {self._signal} are not taken by {self._target} ({why})"
            self._report(self._signal, "" if is_taken else what)
        return is_taken

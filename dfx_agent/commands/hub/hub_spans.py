"""Spans that a job pushes to the hub itself: read as on a node, processed like facts of a node.

Spans that do not name their host are shown on a node called ``otlp``.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from dfx_agent.agent.config import Config
from dfx_agent.base.log import OncePerPlace
from dfx_agent.commands.serve.span_segments import SpanSegments
from dfx_agent.facts.document import dumped
from dfx_agent.facts.envelope import SEND_SECONDS
from dfx_agent.hub.otlp.traces import ReceivedSpan
from dfx_agent.job.folds import JobFolds
from dfx_agent.snapshot import SpansRow, TimelineRow

if TYPE_CHECKING:
    from dfx_agent.agent.agent import Agent

NODE = "otlp"


class HubSpans:
    """Nothing before the first span comes."""

    def __init__(self, folds: JobFolds) -> None:
        self._folds = folds
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._log = OncePerPlace("dfx_agent.otlp")
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._segments: SpanSegments | None = None
        self._agent: Agent | None = None
        self._thread = threading.Thread(target=self._loop, name="dfx-hub-spans", daemon=True)

    def take(self, spans: Sequence[ReceivedSpan]) -> tuple[int, str]:
        """(how many are left out, why the first was)."""
        return self._begun().take(spans)

    def refuse(self, message: str, num_spans: int) -> None:
        self._begun().refuse(message, num_spans)

    def row(self) -> SpansRow | None:
        """None before the first request."""
        return None if self._segments is None else self._segments.row()

    def timeline(
        self, run: str, num_steps: int, ranks: Collection[tuple[str, str]]
    ) -> tuple[TimelineRow, ...]:
        return () if self._agent is None else self._agent.timeline(run, num_steps, ranks)

    def stop(self) -> None:
        with self._lock:
            self._stop.set()
            if self._segments is not None:
                self._segments.stop()
            if self._thread.is_alive():
                self._thread.join(2 * SEND_SECONDS)
            if self._agent is not None:
                self._agent.stop()
            if self._folder is not None:
                self._folder.cleanup()

    def _begun(self) -> SpanSegments:
        with self._lock:
            if self._segments is None:
                from dfx_agent.agent.agent import Agent

                self._folder = tempfile.TemporaryDirectory(prefix="dfx-spans-")
                self._agent = Agent(Config(self._folder.name, find_engines=False))
                self._agent.collect_facts(NODE)
                self._segments = SpanSegments(
                    self._folder.name,
                    lambda: self._folds.snapshot().runs,
                    lambda rank: rank.node == NODE,
                )
                self._thread.start()
            return self._segments

    def _loop(self) -> None:
        while not self._stop.wait(SEND_SECONDS / 2):
            try:
                self._send()
            except Exception as error:  # noqa: BLE001 (a fault of ours: logged, the loop continues)
                self._log.error("spans of the hub", error)

    def _send(self) -> None:
        assert self._agent is not None
        for _ in range(2):  # time is accounted one reading behind
            self._agent.poll()
        for facts in self._agent.facts():
            if facts.run and not self._folds.receive(dumped(facts), NODE):
                for whole in self._agent.facts(is_full=True):
                    self._folds.receive(dumped(whole), NODE)
                return

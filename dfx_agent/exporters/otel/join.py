"""Sends this node's facts to the hub of the job, in its own thread.

The hub decides how often. Without a closed step, a new or lost process or a stalled process, facts
are sent every four seconds.

A slow or missing hub delays nothing else. While the hub accepts nothing, new facts wait at their
source. When it accepts facts again, or is another hub, the complete state is sent. The library is
imported when a hub is joined, not before.
"""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import replace
from importlib import import_module
from typing import Any, Protocol

from dfx_agent import __version__
from dfx_agent.base.errors import BlindError
from dfx_agent.base.log import OncePerPlace
from dfx_agent.exporters.otel.link import HubLink, Report
from dfx_agent.facts import envelope
from dfx_agent.facts.document import dumped
from dfx_agent.facts.run import RunFacts
from dfx_agent.snapshot import HubRow

STOP_SECONDS = 5.0
_EARLY_SECONDS = 0.1  # two paces are as long as one that is twice as long


class FactsSource(Protocol):
    """The facts to send; implemented by the agent."""

    def facts(self, *, is_full: bool, is_last: bool) -> tuple[RunFacts, ...]:
        """All facts of each run, or only new ones; without a run, one that says so.

        Raises BlindError while the agent cannot read its processes.
        """

    def has_news(self) -> bool:
        """Whether something must be sent soon: a step, a new or lost process, a stalled process.

        May raise BlindError.
        """


class HubJoin:
    """Sends facts to a hub. ``token``: sent to the hub, unless it is None."""

    def __init__(self, url: str, token: str | None, ca_file: str | None, report: Report) -> None:
        self._library: Any = import_module(f"{__package__}.facts")
        self._url = url.rstrip("/").removesuffix(envelope.LOGS_PATH)
        self._token, self._ca_file = token, ca_file
        self._link = HubLink(self._url, report)
        self._agent = uuid.uuid4().hex
        self._log = OncePerPlace("dfx_agent.otlp")
        self._last_send_seconds = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="dfx-join", daemon=True)

    def start(self, source: FactsSource, node: str, page_url: str) -> None:
        """``page_url``: address of this agent's page."""
        self._source = source
        self._attributes = {
            envelope.NODE: node,
            envelope.AGENT: self._agent,
            envelope.URL: page_url,
        }
        headers = {envelope.NODE_HEADER: node.encode("ascii", "replace").decode()}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        self._sender = self._library.open_sender(
            self._url + envelope.LOGS_PATH,
            self._link,
            instance=page_url.partition("://")[2],
            version=__version__,
            headers=headers,
            ca_file=self._ca_file,
        )
        self._thread.start()

    def stop(self) -> bool:
        """Send new facts first, if the hub accepts them. Returns whether that was done in time."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
        is_delivered = not self._thread.is_alive()
        self._link.see_end(is_delivered=is_delivered)
        return is_delivered

    @property
    def is_delivered_by_hub(self) -> bool:
        """Whether the hub delivers alerts about the job now."""
        return self._link.is_delivered_by_hub

    def called(self, run: str) -> str:
        """The hub's name for a run of this node."""
        return self._link.called(run)

    def row(self) -> HubRow:
        return self._link.row()

    def _loop(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stop.wait(self._link.every_seconds)
            try:
                self._send(is_last=is_last)
            except Exception as error:  # noqa: BLE001 (our own fault: logged, then continued)
                self._log.error("sending to the hub", error)
        self._sender.shutdown()

    def _may_wait(self) -> bool:
        """Whether the next report is not due and nothing is urgent."""
        is_early = (
            time.monotonic() - self._last_send_seconds < envelope.QUIET_SECONDS - _EARLY_SECONDS
        )
        try:
            return is_early and not self._source.has_news()
        except BlindError:
            return False

    def _send(self, *, is_last: bool) -> None:
        what = self._link.next()
        if what is None or (what == "news" and not is_last and self._may_wait()):
            return
        self._last_send_seconds = time.monotonic()
        try:
            documents = self._source.facts(is_full=what == "all", is_last=is_last)
        except BlindError:  # the agent reports that itself; new facts wait
            self._link.put_off(what)
            return
        for facts in documents:
            run = facts.run or (facts.launch.run if facts.launch is not None else "")
            attributes = {**self._attributes, envelope.RUN: run, envelope.IS_LAST: is_last}
            called = self._link.called(run)
            named = replace(facts, called="" if called == run else called)
            self._sender.add(run, dumped(named), attributes)
        self._sender.flush()

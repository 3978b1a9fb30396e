"""Tells the hub of the job what this node knows, as often as it asks, in a thread of its own.

While no step is closed, nobody comes or goes and nobody stands it is every four seconds.

A hub that is slow or gone delays nobody. While it does not take what is told, news wait with who
knows them; when it does again, or is another one, everything is told anew. The library is imported
when a hub is joined, not before.
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
    """Whose facts are told: the agent."""

    def facts(self, *, is_full: bool, is_last: bool) -> tuple[RunFacts, ...]:
        """Of each run all that is known, or what is new; at least one, that says there is none.

        BlindError while nothing can be asked of it.
        """

    def has_news(self) -> bool:
        """Whether something is to be told soon: a step, who came or went, who stands.

        BlindError too.
        """


class HubJoin:
    """``token`` is shown to the hub, None shows none."""

    def __init__(self, url: str, token: str | None, ca_file: str | None, report: Report) -> None:
        self._library: Any = import_module(f"{__package__}.facts")
        self._url = url.rstrip("/").removesuffix(envelope.LOGS_PATH)
        self._token, self._ca_file = token, ca_file
        self._link = HubLink(self._url, report)
        self._agent = uuid.uuid4().hex
        self._log = OncePerPlace("dfx_agent.otlp")
        self._told_seconds = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="dfx-join", daemon=True)

    def start(self, source: FactsSource, node: str, page_url: str) -> None:
        """``page_url``: where this agent serves."""
        self._source = source
        self._known = {envelope.NODE: node, envelope.AGENT: self._agent, envelope.URL: page_url}
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
        """What is new is told first, where it is taken; whether it was in time."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
        is_told = not self._thread.is_alive()
        self._link.see_end(is_told=is_told)
        return is_told

    @property
    def is_delivered_by_hub(self) -> bool:
        """Whether alerts on the job are the hub's to deliver now."""
        return self._link.is_delivered_by_hub

    def called(self, run: str) -> str:
        """What the hub calls a run of this node."""
        return self._link.called(run)

    def row(self) -> HubRow:
        return self._link.row()

    def _loop(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stop.wait(self._link.every_seconds)
            try:
                self._tell(is_last=is_last)
            except Exception as error:  # noqa: BLE001 (a fault of ours: logged, and it goes on)
                self._log.error("telling the hub", error)
        self._sender.shutdown()

    def _may_wait(self) -> bool:
        """Whether it is early, and nothing of it is urgent."""
        is_early = time.monotonic() - self._told_seconds < envelope.QUIET_SECONDS - _EARLY_SECONDS
        try:
            return is_early and not self._source.has_news()
        except BlindError:
            return False

    def _tell(self, *, is_last: bool) -> None:
        what = self._link.next()
        if what is None or (what == "news" and not is_last and self._may_wait()):
            return
        self._told_seconds = time.monotonic()
        try:
            told = self._source.facts(is_full=what == "all", is_last=is_last)
        except BlindError:  # the agent says so itself; what is new waits with it
            self._link.put_off(what)
            return
        for facts in told:
            run = facts.run or (facts.launch.run if facts.launch is not None else "")
            known = {**self._known, envelope.RUN: run, envelope.IS_LAST: is_last}
            called = self._link.called(run)
            told_as = replace(facts, called="" if called == run else called)
            self._sender.add(run, dumped(told_as), known)
        self._sender.flush()

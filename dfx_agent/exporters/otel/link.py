"""State of the connection to a hub: what its answers mean and what it requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Literal
from urllib.parse import parse_qsl

from dfx_agent.base.text import age_text
from dfx_agent.facts.envelope import (
    CALLED,
    DELIVERS,
    EVERY_SECONDS,
    HUB_ID,
    SEND_SECONDS,
    WANTS_ALL,
)
from dfx_agent.snapshot import HubRow, HubState

# the hub behind a relay may change unnoticed: so often the complete state is sent again
RELAYED_ALL_SECONDS = 10.0
# nodes deliver alerts themselves when a hub that delivers alerts has been gone for so long
HUB_GONE_SECONDS = 60.0
# shortest intervals: for requested reports, and for a hub that has refused this node
_ALL_SECONDS, _REFUSED_SECONDS = 3.0, 10.0
_MIN_SECONDS, _MAX_SECONDS = 1.0, 30.0
_WRONG_TOKEN = frozenset({401, 403})
# status codes of servers that will accept the request later
_PASSING = frozenset({408, 429})

# (one line for people, whether the connection works again)
Report = Callable[[str, bool], None]
What = Literal["all", "news"]


class HubLink:
    """State of one connection. ``report`` is called on the thread of the answer that changes it."""

    def __init__(self, url: str, report: Report) -> None:
        self._lock = threading.Lock()
        self._url, self._report = url, report
        self._state: HubState = "joining"
        self._since, self._message = time.time(), ""
        self._since_ns = time.monotonic_ns()  # the same on a clock that nobody sets
        self._num_sent = self._num_lost = 0
        self._hub_id = ""
        self._wants_all, self._all_seconds = True, float("-inf")
        self._every_seconds = SEND_SECONDS
        self._delivers = False
        self._called: dict[str, str] = {}
        self._is_over = self._is_delivered = False

    @property
    def every_seconds(self) -> float:
        """Interval between reports that the hub requests, in seconds."""
        return self._every_seconds

    @property
    def is_delivered_by_hub(self) -> bool:
        """Whether alerts on the job are the hub's: it delivers, and has not been gone for long.

        At the end the hub is not waited for: no other node would deliver what it has not accepted.
        """
        with self._lock:
            patience_seconds = 0.0 if self._is_over else HUB_GONE_SECONDS
            seconds = (time.monotonic_ns() - self._since_ns) / 1e9
            is_gone = self._state != "joined" and seconds >= patience_seconds
            is_gone |= self._is_over and not self._is_delivered
            return self._delivers and not is_gone

    def called(self, run: str) -> str:
        """The hub's name for a run of this node; its alerts have this name on both."""
        return self._called.get(run, run)

    def row(self) -> HubRow:
        with self._lock:
            return HubRow(
                self._url,
                self._state,
                self._since,
                self._message,
                self._num_sent,
                self._num_lost,
            )

    def next(self) -> What | None:
        """What to send now; a returned "all" counts as sent."""
        now = time.monotonic()
        with self._lock:
            is_relayed = self._state == "joined" and not self._hub_id
            if not self._wants_all and not is_relayed:
                return "news"
            rest_seconds = RELAYED_ALL_SECONDS
            if self._wants_all:
                rest_seconds = _REFUSED_SECONDS if self._state == "refused" else _ALL_SECONDS
            if now - self._all_seconds < rest_seconds:
                return None if self._wants_all else "news"
            self._wants_all, self._all_seconds = False, now
            return "all"

    def put_off(self, what: What) -> None:
        """What ``next`` returned could not be sent now."""
        with self._lock:
            self._wants_all |= what == "all"

    def see_answer(self, status: int, headers: Mapping[str, str], reason: str) -> None:
        """``headers``: names in any case; ``reason``: the hub's text for a refusal."""
        if 200 <= status < 300:
            self._see_taken(headers, reason)
        elif status in _WRONG_TOKEN:
            remedy = "give the hub's token with --join-token-file FILE"
            self._become("refused", f"wrong token ({status}); {remedy}")
        elif status >= 500 or status in _PASSING:
            self._become("lost", f"it answers {status}")
        else:
            self._become("refused", reason or f"it answers {status}")

    def see_no_answer(self, reason: str) -> None:
        self._become("lost", reason)

    def see_end(self, *, is_delivered: bool) -> None:
        """No more is sent. ``is_delivered``: whether the hub accepted all new facts in time."""
        with self._lock:
            self._is_over, self._is_delivered = True, is_delivered

    def count_sent(self, num_documents: int) -> None:
        with self._lock:
            self._num_sent += num_documents

    def count_lost(self, num_documents: int) -> None:
        with self._lock:
            self._num_lost += num_documents
            self._wants_all = True

    def _see_taken(self, headers: Mapping[str, str], reason: str) -> None:
        hub_id = headers.get(HUB_ID, "")
        with self._lock:
            is_other = bool(self._hub_id) and hub_id != self._hub_id
            self._wants_all |= is_other or WANTS_ALL in headers
            self._hub_id = hub_id
            self._every_seconds = _seconds(headers.get(EVERY_SECONDS))
            self._delivers = DELIVERS in headers
            self._called |= parse_qsl(headers.get(CALLED, ""))
        self._become("refused" if reason else "joined", reason)

    def _become(self, state: HubState, message: str) -> None:
        now_ns = time.monotonic_ns()
        with self._lock:
            before, since_ns = self._state, self._since_ns
            is_same = (state, message) == (before, self._message)
            self._message = message
            if state != before:
                self._state, self._since, self._since_ns = state, time.time(), now_ns
        if not is_same and state != before:
            message_text = _change_text(
                self._url, state, before, message, (now_ns - since_ns) / 1e9
            )
            self._report(message_text, state == "joined")


def _change_text(url: str, state: HubState, before: HubState, message: str, seconds: float) -> str:
    if state == "lost":
        return f"the hub {url} does not answer ({message}): this node judges what it sees itself"
    if state == "refused":
        return f"the hub {url} refuses this node: {message}"
    if before == "joining":
        return f"joined the hub {url}"
    return f"the hub {url} accepts reports of this node again, after {age_text(seconds)}"


def _seconds(text: str | None) -> float:
    try:
        wished = float(text or "")
    except ValueError:
        return SEND_SECONDS
    return min(wished, _MAX_SECONDS) if wished > _MIN_SECONDS else _MIN_SECONDS

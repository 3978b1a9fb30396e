"""Alertmanager's API v2: what fires is said again every minute, what has ended once it was said.

Nothing depends on what a receiver remembers, so a restart of Alertmanager costs nothing: it is told
again within a minute. Every alert is delivered as firing, for at least a minute, before its end
is: one that came and went while Alertmanager was away still reaches people. Each Alertmanager of a
cluster has an outbox of its own, as its documentation asks for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from dfx_agent.alerting.courier import Batch, Courier
from dfx_agent.alerting.notification import Notification
from dfx_agent.alerting.transport import Endpoint

API_PATH = "/api/v2/alerts"
RESEND_SECONDS = 60.0
# an alert that nobody repeats ends by itself, as with Prometheus: after four repetitions
EXPIRY_SECONDS = 4 * RESEND_SECONDS
# longer than any sensible group_wait: what is shorter is never seen by people
MIN_FIRING_SECONDS = 60.0
# an Alertmanager that was told of an end and restarted before it told people hears it again
KEEP_ENDED_SECONDS = 900.0
MAX_BATCH = 64
MAX_ENTRIES = 5000


@dataclass
class _Entry:
    """One alert; ``*_at`` is when Alertmanager took it as firing first, last, and as ended."""

    notification: Notification
    ends_seconds: float | None = None
    first_at: float | None = None
    newest_at: float | None = None
    ended_at: float | None = None

    def is_end_due(self, now: float) -> bool:
        """Its end may be told: Alertmanager has known it long enough."""
        if self.ends_seconds is None or self.first_at is None:
            return False
        return abs(now - self.first_at) >= MIN_FIRING_SECONDS

    def is_news(self, now: float) -> bool:
        """Alertmanager does not know it yet, or not that it has ended."""
        return self.first_at is None or (self.ended_at is None and self.is_end_due(now))

    def is_due(self, now: float) -> bool:
        if self.newest_at is None or self.is_news(now):
            return True
        # abs: a clock that was set back must not silence us
        return abs(now - self.newest_at) >= RESEND_SECONDS

    def is_over(self, now: float) -> bool:
        return self.ended_at is not None and now > self.ended_at + KEEP_ENDED_SECONDS


class AlertmanagerOutbox:
    """The alerts that one Alertmanager has to know of."""

    def __init__(self) -> None:
        self.num_dropped = 0
        self._now = 0.0
        self._entries: dict[str, _Entry] = {}
        self._refused: set[str] = set()

    @property
    def num_waiting(self) -> int:
        return sum(entry.is_news(self._now) for entry in self._entries.values())

    def resume(self, told: Mapping[str, Notification]) -> None:
        for key, notification in told.items():
            entry = self._entries[key] = _Entry(notification)
            entry.first_at = notification.starts_seconds

    def told(self) -> dict[str, Notification]:
        return {
            key: entry.notification
            for key, entry in self._entries.items()
            if entry.first_at is not None and entry.ended_at is None
        }

    def update(self, firing: Mapping[str, Notification], now_seconds: float) -> None:
        self._now = now_seconds
        self._refused &= firing.keys()
        for key, notification in firing.items():
            self._fire(key, notification)
        for key, entry in list(self._entries.items()):
            if key not in firing and entry.ends_seconds is None:
                entry.ends_seconds = now_seconds
            if entry.is_over(now_seconds):
                del self._entries[key]

    def let_go(self, named: Collection[tuple[str, str]]) -> None:
        for key, entry in list(self._entries.items()):
            if entry.notification.named in named:
                del self._entries[key]

    def next_batch(self, now_seconds: float) -> Batch | None:
        """At most 64 alerts, the news first."""
        self._now = now_seconds
        due = [item for item in self._entries.items() if item[1].is_due(now_seconds)]
        due.sort(key=lambda item: not item[1].is_news(now_seconds))
        chosen = due[:MAX_BATCH]
        if not chosen:
            return None
        items = tuple((key, entry, entry.is_end_due(now_seconds)) for key, entry in chosen)
        return Batch([_said(entry, now_seconds, is_end=end) for _, entry, end in items], items)

    def taken(self, batch: Batch, now_seconds: float) -> None:
        for key, said, is_end in batch.items:
            entry = self._entries.get(key)
            if entry is None or entry is not said:
                continue
            entry.newest_at = now_seconds
            if not is_end:
                entry.first_at = now_seconds if entry.first_at is None else entry.first_at
            elif entry.ends_seconds is None:
                entry.newest_at = None  # it fired again meanwhile
            elif entry.ended_at is None:
                entry.ended_at = now_seconds

    def _fire(self, key: str, notification: Notification) -> None:
        entry = self._entries.get(key)
        if entry is None or entry.ended_at is not None:
            if entry is not None or self._has_room():
                self._entries[key] = _Entry(notification)
            elif key not in self._refused:
                self._refused.add(key)
                self.num_dropped += 1
            return
        entry.ends_seconds = None
        begun = entry.notification.starts_seconds
        entry.notification = Notification(
            notification.labels, notification.annotations, begun, notification.page_url
        )

    def _has_room(self) -> bool:
        """Make some by forgetting what has ended, told or not."""
        if len(self._entries) < MAX_ENTRIES:
            return True
        ended = ((key, e) for key, e in self._entries.items() if e.ends_seconds is not None)
        oldest = min(ended, key=lambda item: (item[1].ended_at is None, item[1].ends_seconds),
                     default=None)  # fmt: skip
        if oldest is None:
            return False
        key, entry = oldest
        self.num_dropped += entry.ended_at is None
        del self._entries[key]
        return True


def alertmanagers(endpoints: Iterable[Endpoint]) -> list[Courier]:
    """A receiver for each Alertmanager."""
    return [Courier("alertmanager", endpoint, AlertmanagerOutbox()) for endpoint in endpoints]


def _said(entry: _Entry, now: float, *, is_end: bool) -> dict[str, object]:
    ends = entry.ends_seconds if is_end else now + EXPIRY_SECONDS
    return entry.notification.as_json(ends)

"""Delivery to Alertmanager (API v2): firing alerts are sent again every minute, ends once.

A restarted Alertmanager gets all firing alerts again within a minute. Each alert is sent as firing
for at least a minute before its end is sent. Therefore people are notified even if an alert began
and ended while Alertmanager was down. Each Alertmanager of a cluster has its own outbox, as its
documentation recommends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from dfx_agent.alerting.courier import AlertPost, Courier
from dfx_agent.alerting.notification import Notification
from dfx_agent.alerting.transport import Endpoint

API_PATH = "/api/v2/alerts"
RESEND_SECONDS = 60.0
# an alert that is not sent again expires, as with Prometheus: after four intervals
EXPIRY_SECONDS = 4 * RESEND_SECONDS
# longer than any usual group_wait; people are not notified of shorter alerts
MIN_FIRING_SECONDS = 60.0
# how long an end is sent again, in case Alertmanager restarted before it notified people
KEEP_ENDED_SECONDS = 900.0
MAX_BATCH = 64
MAX_ENTRIES = 5000


@dataclass
class _AlertEntry:
    """One alert in the outbox. Times are Unix seconds."""

    notification: Notification
    ends_seconds: float | None = None
    """When the alert ended."""
    first_at: float | None = None
    """When Alertmanager first accepted it as firing."""
    latest_at: float | None = None
    """When Alertmanager last accepted it."""
    ended_at: float | None = None
    """When Alertmanager first accepted its end."""

    def is_end_due(self, now: float) -> bool:
        """Whether the end may be sent: the alert has been firing at Alertmanager long enough."""
        if self.ends_seconds is None or self.first_at is None:
            return False
        return abs(now - self.first_at) >= MIN_FIRING_SECONDS

    def is_news(self, now: float) -> bool:
        """Whether Alertmanager has not yet accepted the alert or its end."""
        return self.first_at is None or (self.ended_at is None and self.is_end_due(now))

    def is_due(self, now: float) -> bool:
        if self.latest_at is None or self.is_news(now):
            return True
        # abs: a clock that was set back must not stop the delivery
        return abs(now - self.latest_at) >= RESEND_SECONDS

    def is_over(self, now: float) -> bool:
        return self.ended_at is not None and now > self.ended_at + KEEP_ENDED_SECONDS


class AlertmanagerOutbox:
    """The alerts of one Alertmanager."""

    def __init__(self) -> None:
        self.num_dropped = 0
        self._now = 0.0
        self._entries: dict[str, _AlertEntry] = {}
        self._refused: set[str] = set()

    @property
    def num_waiting(self) -> int:
        return sum(entry.is_news(self._now) for entry in self._entries.values())

    def resume(self, delivered: Mapping[str, Notification]) -> None:
        for key, notification in delivered.items():
            entry = self._entries[key] = _AlertEntry(notification)
            entry.first_at = notification.starts_seconds

    def delivered(self) -> dict[str, Notification]:
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

    def drop(self, named: Collection[tuple[str, str]]) -> None:
        for key, entry in list(self._entries.items()):
            if entry.notification.named in named:
                del self._entries[key]

    def next_batch(self, now_seconds: float) -> AlertPost | None:
        """At most 64 alerts; those that Alertmanager has not accepted yet come first."""
        self._now = now_seconds
        due = [item for item in self._entries.items() if item[1].is_due(now_seconds)]
        due.sort(key=lambda item: not item[1].is_news(now_seconds))
        chosen = due[:MAX_BATCH]
        if not chosen:
            return None
        items = tuple((key, entry, entry.is_end_due(now_seconds)) for key, entry in chosen)
        return AlertPost([_json(entry, now_seconds, is_end=end) for _, entry, end in items], items)

    def confirm(self, batch: AlertPost, now_seconds: float) -> None:
        for key, sent, is_end in batch.items:
            entry = self._entries.get(key)
            if entry is None or entry is not sent:
                continue
            entry.latest_at = now_seconds
            if not is_end:
                entry.first_at = now_seconds if entry.first_at is None else entry.first_at
            elif entry.ends_seconds is None:
                entry.latest_at = None  # it fired again meanwhile
            elif entry.ended_at is None:
                entry.ended_at = now_seconds

    def _fire(self, key: str, notification: Notification) -> None:
        entry = self._entries.get(key)
        if entry is None or entry.ended_at is not None:
            if entry is not None or self._has_room():
                self._entries[key] = _AlertEntry(notification)
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
        """Whether there is room for one more alert, after dropping an ended one if necessary."""
        if len(self._entries) < MAX_ENTRIES:
            return True
        ended = (
            (key, entry) for key, entry in self._entries.items() if entry.ends_seconds is not None
        )
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


def _json(entry: _AlertEntry, now: float, *, is_end: bool) -> dict[str, object]:
    ends = entry.ends_seconds if is_end else now + EXPIRY_SECONDS
    return entry.notification.as_json(ends)

"""A generic webhook: sends each alert once when it fires and once when it ends, in order.

The body is that of Alertmanager's webhook (version 4) with one alert, so that receivers of
Alertmanager work unchanged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dfx_agent.alerting.courier import AlertPost, Courier
from dfx_agent.alerting.notification import Notification, rfc3339
from dfx_agent.alerting.transport import Endpoint

MAX_WAITING = 1000
# severities that are only context: they are not sent
_QUIET_SEVERITIES = frozenset({"info", "none"})
_NO_END = "0001-01-01T00:00:00Z"


@dataclass(frozen=True, eq=False)
class _Event:
    """Begin or end of an alert."""

    notification: Notification
    ends_seconds: float | None
    """Unix time of the end; None when the alert begins to fire."""


class WebhookOutbox:
    """Waiting events in order. If there are too many, the oldest are dropped and counted."""

    def __init__(self) -> None:
        self.num_dropped = 0
        self._firing: dict[str, Notification] = {}
        self._delivered: dict[str, Notification] = {}
        self._events: deque[_Event] = deque()

    @property
    def num_waiting(self) -> int:
        return len(self._events)

    def resume(self, delivered: Mapping[str, Notification]) -> None:
        self._firing, self._delivered = dict(delivered), dict(delivered)

    def delivered(self) -> dict[str, Notification]:
        return dict(self._delivered)

    def update(self, firing: Mapping[str, Notification], now_seconds: float) -> None:
        for key in [key for key in self._firing if key not in firing]:
            self._add(_Event(self._firing.pop(key), now_seconds))
        for key, notification in firing.items():
            is_loud = notification.labels.get("severity") not in _QUIET_SEVERITIES
            if is_loud and key not in self._firing:
                self._firing[key] = notification
                self._add(_Event(notification, None))

    def drop(self, named: Collection[tuple[str, str]]) -> None:
        for alerts in (self._firing, self._delivered):
            for key in [key for key, alert in alerts.items() if alert.named in named]:
                del alerts[key]
        self._events = deque(
            event for event in self._events if event.notification.named not in named
        )

    def next_batch(self, now_seconds: float) -> AlertPost | None:  # noqa: ARG002 (events do not depend on time)
        if not self._events:
            return None
        return AlertPost(_body(self._events[0]), (self._events[0],))

    def confirm(self, batch: AlertPost, now_seconds: float) -> None:  # noqa: ARG002 (the same)
        if self._events and self._events[0] is batch.items[0]:
            event = self._events.popleft()
            key = event.notification.fingerprint
            if event.ends_seconds is None:
                self._delivered[key] = event.notification
            else:
                self._delivered.pop(key, None)

    def _add(self, event: _Event) -> None:
        if len(self._events) >= MAX_WAITING:
            self._events.popleft()
            self.num_dropped += 1
        self._events.append(event)


def webhooks(endpoints: Iterable[Endpoint]) -> list[Courier]:
    """A receiver for each webhook."""
    return [Courier("webhook", endpoint, WebhookOutbox()) for endpoint in endpoints]


def _body(event: _Event) -> dict[str, Any]:
    notification = event.notification
    status = "firing" if event.ends_seconds is None else "resolved"
    ends = _NO_END if event.ends_seconds is None else rfc3339(event.ends_seconds)
    alert = {
        **notification.as_json(None),
        "status": status,
        "endsAt": ends,
        "fingerprint": notification.fingerprint,
    }
    labels, annotations = dict(notification.labels), dict(notification.annotations)
    return {
        "version": "4",
        "groupKey": f"dfx-agent:{notification.fingerprint}",
        "truncatedAlerts": 0,
        "status": status,
        "receiver": "dfx-agent",
        "groupLabels": labels,
        "commonLabels": labels,
        "commonAnnotations": annotations,
        "externalURL": notification.page_url,
        "alerts": [alert],
    }

"""An alert as it is delivered, and its identity at Alertmanager.

The agent stores delivered alerts, so that the next agent can send their ends. After a restart,
delivered alerts stay firing until they have been evaluated again. Otherwise an alert with a minimum
duration would be sent as resolved, and then as firing again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Protocol

from pydantic import FiniteFloat

from dfx_agent.catalogue.alerts.alert import Alert
from dfx_agent.snapshot.document import Document

# in addition to the minimum duration of the condition
HOLD_SECONDS = 120.0

_FNV_OFFSET, _FNV_PRIME, _SEPARATOR = 14695981039346656037, 1099511628211, b"\xff"


@dataclass(frozen=True)
class Notification:
    """A firing alert."""

    labels: Mapping[str, str]
    """Identity of the alert."""
    annotations: Mapping[str, str]
    starts_seconds: FiniteFloat
    """Unix time since which it fires."""
    page_url: str

    @property
    def named(self) -> tuple[str, str]:
        """The name and the severity of the alert."""
        return self.labels.get("alertname", ""), self.labels.get("severity", "")

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.labels)

    def as_json(self, ends_seconds: float | None) -> dict[str, Any]:
        """The alert in the format of Alertmanager, with ``endsAt`` if it has ended."""
        starts = self.starts_seconds
        body: dict[str, Any] = {
            "labels": dict(self.labels),
            "annotations": dict(self.annotations),
            "generatorURL": self.page_url,
        }
        if ends_seconds is not None:
            # Alertmanager refuses an end before the begin, which a clock change can cause
            starts = min(starts, ends_seconds)
            body["endsAt"] = rfc3339(ends_seconds)
        return {**body, "startsAt": rfc3339(starts)}


def fingerprint(labels: Mapping[str, str]) -> str:
    """prometheus/common ``LabelSet.Fingerprint``: FNV-1a, 64 bit, over sorted names and values."""
    value = _FNV_OFFSET
    for name in sorted(labels):
        text = name.encode() + _SEPARATOR + labels[name].encode() + _SEPARATOR
        for byte in text:
            value = (value ^ byte) * _FNV_PRIME % (1 << 64)
    return f"{value:016x}"


def rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")


Delivered = dict[str, Notification]
"""Delivered alerts by fingerprint."""

DOCUMENT = Document[dict[str, Delivered]](dict[str, Delivered])
"""Delivered alerts by receiver."""


class Memory(Protocol):
    """Stores delivered alerts by receiver for the next agent. Neither call raises."""

    def load(self) -> dict[str, Delivered] | None: ...

    def save(self, value: dict[str, Delivered]) -> None: ...


class Held:
    """Alerts that the previous agent delivered and that have not been evaluated again."""

    def __init__(self, delivered: Mapping[str, Delivered], alerts: Iterable[Alert]) -> None:
        self._begin = time.monotonic()
        self._lasting = {alert.name: float(alert.for_seconds) for alert in alerts}
        self._waiting = {
            key: alert for alerts in delivered.values() for key, alert in alerts.items()
        }

    def starts_seconds(self, key: str) -> float | None:
        """When a held alert began; None if it is not held."""
        held = self._waiting.get(key)
        return held.starts_seconds if held is not None else None

    def still(self, firing: Iterable[str]) -> Delivered:
        """Held alerts that stay firing.

        Alerts in ``firing`` have been evaluated and are released.
        """
        for key in firing:
            self._waiting.pop(key, None)
        passed = time.monotonic() - self._begin
        for key, held in list(self._waiting.items()):
            if passed > HOLD_SECONDS + self._lasting.get(held.labels.get("alertname", ""), 0.0):
                del self._waiting[key]
        return dict(self._waiting)

"""One alert as it is delivered, and the identity that Alertmanager gives it.

Receivers get the end of an alert from the agent after this one, which reads what they were told.
Held as firing after a restart: an alert whose condition has to last has not lasted again yet, and
"resolved" and then "firing" once more would be two lies.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Protocol

from pydantic import FiniteFloat

from dfx_agent.catalogue.alerts.alert import Alert
from dfx_agent.snapshot import DeliveryRow
from dfx_agent.snapshot.document import Document

# beside the time for which a condition has to last
HOLD_SECONDS = 120.0

_FNV_OFFSET, _FNV_PRIME, _SEPARATOR = 14695981039346656037, 1099511628211, b"\xff"


@dataclass(frozen=True)
class Notification:
    """An alert that fires since ``starts_seconds`` (Unix time); equal labels are one alert."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_seconds: FiniteFloat
    page_url: str

    @property
    def named(self) -> tuple[str, str]:
        """The name and the severity of the alert."""
        return self.labels.get("alertname", ""), self.labels.get("severity", "")

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.labels)

    def as_json(self, ends_seconds: float | None) -> dict[str, Any]:
        """In the words of Alertmanager; without an end ``endsAt`` is left out."""
        starts = self.starts_seconds
        body: dict[str, Any] = {
            "labels": dict(self.labels),
            "annotations": dict(self.annotations),
            "generatorURL": self.page_url,
        }
        if ends_seconds is not None:
            # an end before the begin is refused; a clock may have been set back between them
            starts = min(starts, ends_seconds)
            body["endsAt"] = rfc3339(ends_seconds)
        return {**body, "startsAt": rfc3339(starts)}


class Receiver(Protocol):
    """Delivers in a thread of its own; no call waits for the network but ``join``."""

    @property
    def key(self) -> str:
        """The same in every agent with this receiver; says nothing secret."""

    def start(self) -> None: ...

    def resume(self, told: Mapping[str, Notification]) -> None:
        """Before ``start``: what an agent before told it as firing, by fingerprint."""

    def told(self) -> dict[str, Notification]:
        """What it has taken as firing, and not as ended."""

    def update(self, firing: Mapping[str, Notification], now_seconds: float) -> None:
        """Everything that fires now, by fingerprint; what was there before and is not has ended."""

    def let_go(self, named: Collection[tuple[str, str]]) -> None:
        """Somebody else tells these (name, severity) from now on: forget them, tell no end."""

    def row(self) -> DeliveryRow: ...

    def finish(self) -> None:
        """Try once more to deliver what waits, and end."""

    def join(self, seconds: float) -> None:
        """Wait for that end, so long at most."""


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


Told = dict[str, Notification]
"""By fingerprint."""

DOCUMENT = Document[dict[str, Told]](dict[str, Told])
"""By receiver."""


class Memory(Protocol):
    """What outlives the agent, by receiver; neither call raises."""

    def load(self) -> dict[str, Told] | None: ...

    def save(self, value: dict[str, Told]) -> None: ...


class Held:
    """What was told by an agent before and has not been judged again."""

    def __init__(self, told: Mapping[str, Told], alerts: Iterable[Alert]) -> None:
        self._begin = time.monotonic()
        self._lasting = {alert.name: float(alert.for_seconds) for alert in alerts}
        self._waiting = {key: n for each in told.values() for key, n in each.items()}

    def starts_seconds(self, key: str) -> float | None:
        """When it began, as it was told."""
        held = self._waiting.get(key)
        return held.starts_seconds if held is not None else None

    def still(self, firing: Iterable[str]) -> Told:
        """Those that go on for now; what is ``firing`` has been judged again."""
        for key in firing:
            self._waiting.pop(key, None)
        passed = time.monotonic() - self._begin
        for key, held in list(self._waiting.items()):
            if passed > HOLD_SECONDS + self._lasting.get(held.labels.get("alertname", ""), 0.0):
                del self._waiting[key]
        return dict(self._waiting)

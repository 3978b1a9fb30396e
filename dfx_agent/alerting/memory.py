"""What receivers were told, so that the agent after this one can tell them that it is over.

Held as firing after a restart: an alert whose condition has to last has not lasted again yet, and
"resolved" and then "firing" once more would be two lies.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Protocol

from dfx_agent.alerting.notification import Notification
from dfx_agent.rules.alert import Alert
from dfx_agent.snapshot.document import Document

# beside the time for which a condition has to last
HOLD_SECONDS = 120.0

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

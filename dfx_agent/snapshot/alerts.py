"""Contract 2: what fires, and who was told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class AlertRow:
    """One alert that fires now; ``labels`` (alertname, run, ...) tell it from every other.

    Begin and ``sentence`` are of its ``incident`` (an id). ``is_inhibited``: another one speaks.
    """

    run: str
    alert: str
    severity: str
    labels: Mapping[str, str]
    summary: str
    since_seconds: float
    since_step: int | None
    is_inhibited: bool
    lines: tuple[str, ...]
    meaning: str
    diagnosis: str
    mitigation: str
    verdict: str = ""
    incident: str = ""
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """One receiver of alerts; ``target`` is its host without anything secret.

    ``is_reached`` is None before the first attempt. ``last_error`` is one line, "" after a success.
    """

    kind: Literal["alertmanager", "webhook"]
    target: str
    is_reached: bool | None
    num_sent: int
    num_failed: int
    num_dropped: int
    num_waiting: int
    last_error: str


@dataclass(frozen=True, slots=True)
class Alerts:
    """What fires at one instant, worst first, and how its delivery stands."""

    time_seconds: float
    alerts: tuple[AlertRow, ...]
    deliveries: tuple[DeliveryRow, ...]
    num_evaluations: int
    num_errors: int


class AlertSource(Protocol):
    """What the renderers of alerts ask; implemented by ``alerting``."""

    def alerts(self) -> Alerts:
        """As of the newest evaluation; cheap, never blocks."""

"""Contract 2: alerts that fire, and how they are delivered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class AlertRow:
    """One alert that fires now; its ``labels`` (alertname, run, …) identify it."""

    run: str
    alert: str
    severity: str
    labels: Mapping[str, str]
    summary: str
    since_seconds: float
    since_step: int | None
    is_inhibited: bool
    """Whether it is not sent because another alert covers it."""
    lines: tuple[str, ...]
    meaning: str
    diagnosis: str
    mitigation: str
    verdict: str = ""
    incident: str = ""
    """Id of its incident; begin and ``sentence`` are the incident's."""
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """One receiver of alerts."""

    kind: Literal["alertmanager", "webhook"]
    target: str
    """Its host, without secrets."""
    is_reached: bool | None
    """None before the first attempt."""
    num_sent: int
    num_failed: int
    num_dropped: int
    num_waiting: int
    last_error: str
    """One line; "" after a success."""


@dataclass(frozen=True, slots=True)
class Alerts:
    """Alerts that fire at one instant, worst first, and the state of their delivery."""

    time_seconds: float
    alerts: tuple[AlertRow, ...]
    deliveries: tuple[DeliveryRow, ...]
    num_evaluations: int
    num_errors: int


class AlertSource(Protocol):
    """What renderers of alerts read; implemented by ``alerting``."""

    def alerts(self) -> Alerts:
        """Alerts of the latest evaluation; cheap, never blocks."""

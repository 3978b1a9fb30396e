"""Runs with symptoms, and alerts that look at them."""

from __future__ import annotations

from dfx_agent.alerting.live import LiveAlerts
from dfx_agent.snapshot import AgentRow, RunRow, SignalState, Snapshot, SymptomRow

FAMILIES = ("divergence", "grad_norm", "entropy", "reward", "length")


AGENT = AgentRow("1", 1, "node", 0.0, 1, 0.0, 1, 0, 0, 0, 0, None, ())


def state(row: int, *active: str) -> SignalState:
    symptoms = tuple(
        SymptomRow(f, "up", f in active, 90 if f in active else None) for f in FAMILIES
    )
    return SignalState(row, row, (), symptoms, False, False, None, {}, None, False)  # noqa: FBT003


def run(name: str, signals: SignalState | None) -> RunRow:
    return RunRow(name, "verl", 0, 0.0, (), (), (), signals=signals)


class Told:
    """A receiver that stores its latest update."""

    def __init__(self) -> None:
        self.firing = {}

    def update(self, firing, now_seconds) -> None:
        self.firing = dict(firing)

    def drop(self, named) -> None:
        self.firing = {key: n for key, n in self.firing.items() if n.named not in named}

    @property
    def names(self) -> set[tuple[str, str]]:
        return {(n.labels["alertname"], n.labels["run"]) for n in self.firing.values()}

    def row(self) -> None:
        return None


def look(alerts: LiveAlerts, *runs: RunRow) -> None:
    alerts.evaluate(Snapshot(0.0, AGENT, runs))

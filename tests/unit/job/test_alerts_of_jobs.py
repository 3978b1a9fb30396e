"""What fires of a job is part of its incidents; a hub looks at it anew only where that changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from nodes_scene import Hub, Node

from dfx_agent.job import folds
from dfx_agent.snapshot import AlertRow

ALERT = AlertRow(
    "r", "DfxEntropyDrift", "warning", {}, "entropy drifts", 1500.0, 9, False, (), "", "", "",  # noqa: FBT003
)  # fmt: skip


def test_the_job_is_looked_at_again_only_where_something_else_fires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub = Hub(Node("node-a", (0, 1)))
    hub.follow(0, 3)
    now_ns, now_seconds = hub.at(3)
    monkeypatch.setattr(folds.time, "monotonic_ns", lambda: now_ns)
    monkeypatch.setattr(folds.time, "time", lambda: now_seconds)
    hub.folds.await_alerts()
    calm = hub.folds.see_alerts(())
    assert [run.incidents for run in calm.runs] == [()]
    assert hub.folds.see_alerts(()) is calm
    firing = hub.folds.see_alerts((ALERT,))
    assert [i.alerts for run in firing.runs for i in run.incidents] == [("DfxEntropyDrift",)]
    assert hub.folds.see_alerts((replace(ALERT),)) is firing
    assert hub.folds.see_alerts(()) is not firing

"""Ranks by steps, of the closed steps that a snapshot holds."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest
from scripted_source import RUN, ScriptedSource

from dfx_agent.web.app import create_app
from dfx_agent.web.heatmap import heatmap
from dfx_agent.web.listener import Listener
from dfx_agent.web.server import Server


def test_each_rank_has_a_value_in_each_step():
    (run,) = ScriptedSource(4, clock=lambda: 1.8e9, num_past_steps=6).snapshot().runs
    shown = heatmap(run, "", "active")
    assert (shown.role, shown.ranks, shown.steps) == (
        "actor",
        ("0", "1", "2", "3"),
        tuple(range(6)),
    )
    last = run.steps[-1]
    assert shown.values[-1] == pytest.approx([c.split.active_seconds for c in last.cells], 1e-3)
    assert max(shown.values[-1]) == shown.values[-1][2], "rank 2 samples more slowly"
    waits = heatmap(run, "", "wait").values[-1]
    assert min(waits) == waits[2]
    assert heatmap(run, "actor", "tokens", after=4).values == ((15000, 15310, 15620, 15930),)
    gone = replace(last, cells=last.cells[1:])
    assert heatmap(replace(run, steps=(gone,)), "", "idle").values[0][0] is None
    assert heatmap(run, "critic", "active").ranks == ()


def test_it_is_asked_for_by_run():
    source = ScriptedSource(2, clock=lambda: 1.8e9, num_past_steps=3)
    app = create_app(source, lambda _: (b"", "text/plain"))
    server = Server(app, Listener("127.0.0.1", 0))
    server.start()
    try:
        with httpx.Client(base_url=f"{server.url}/api/v1/runs/", timeout=10) as client:
            answer = client.get(f"{RUN}/heatmap", params={"measure": "wait", "after": 1})
            (one,), known = (
                client.get(f"{RUN}/steps?step=1").json(),
                client.get(f"{RUN}/steps").json(),
            )
            none, wrong = client.get("none/heatmap"), client.get(f"{RUN}/heatmap?measure=x")
    finally:
        server.stop()
    found = answer.json()
    assert (found["steps"], found["measure"], len(found["values"][0])) == ([2], "wait", 2)
    assert (one["step"], [cell["rank"] for cell in one["cells"]]) == (1, ["0", "1"])
    assert [(row["step"], row["cells"]) for row in known] == [(0, []), (1, []), (2, [])]
    assert (none.status_code, wrong.status_code) == (404, 422)

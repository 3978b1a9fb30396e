"""Real ranks of a pipeline: where each is and who does the same work, from their own segments."""

from __future__ import annotations

import contextlib
import types
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")
from live_processes import TORCHRUN, LiveAgent, patience, running, until, unused_port

from dfx_agent.facts.layout import DATA, PIPELINE, Layout
from dfx_agent.judge.straggler.comparable_ranks import divided
from dfx_agent.node.segments.reader import Follower
from dfx_agent.node.steps import LayoutWatch

JOB = str(Path(__file__).parent / "jobs" / "two_stages.py")


def layout_of(folder: Path) -> Layout | None:
    """As a fresh reader finds it; None before all four have told of their groups and peers."""
    ranks = []
    for path in sorted(folder.glob("*.seg")):
        follower = Follower(str(path))
        follower.poll()
        if follower.identity.rank >= 0:
            label = str(follower.identity.rank)
            ranks.append(types.SimpleNamespace(label=label, follower=follower))
        else:
            follower.finish()
    layout = LayoutWatch().layout(ranks)
    for rank in ranks:
        rank.follower.finish()
    has_told = all(place.neighbours for place in layout.places.values())
    return layout if len(layout.places) == 4 and has_told and len(layout.groups) >= 5 else None


def shown_by(agent: LiveAgent) -> dict | None:
    """Rows of all four ranks; on a loaded machine an answer may take too long."""
    with contextlib.suppress(OSError):
        rows = agent.ranks()
        return rows if len(rows) == 4 else None
    return None


@pytest.mark.parametrize("how", ["mesh", "megatron"])
def test_ranks_report_groups_peers_and_layout(dfx_dir, tmp_path, how):
    stop = tmp_path / "stop"
    command = [*TORCHRUN, "4", JOB, str(stop), how]
    with running(tmp_path, unused_port(), command) as agent:
        layout = until(lambda: layout_of(dfx_dir), "all ranks have told", 90)
        shown = until(lambda: (rows := agent.ranks()) and len(rows) == 4 and rows, "four ranks", 60)
        stop.touch()
        assert agent.process.wait(120 * patience()) == 0, agent.process.errors
    assert {place.rank: place.neighbours for place in layout.places.values()} == {
        0: (2,), 1: (3,), 2: (0,), 3: (1,),
    }  # fmt: skip
    reported = {
        (group.description, tuple(rank for rank in range(8) if group.has(rank)))
        for group in layout.groups
    }
    assert {
        ("mesh_pp", (0, 2)),
        ("mesh_pp", (1, 3)),
        ("mesh_dp", (0, 1)),
        ("mesh_dp", (2, 3)),
    } <= reported
    assert all(group.is_whole for group in layout.groups)
    if how == "megatron":
        assert layout.places["3"].coordinates == {PIPELINE: 1, DATA: 1}
        assert layout.places["3"].sizes == {PIPELINE: 2, DATA: 2}
        assert shown["3"]["node"] == layout.places["3"].node
    for known in (layout, Layout(layout.places)):
        division = divided(known, ["0", "1", "2", "3"])
        assert division.cells == (("0", "1"), ("2", "3"))
        assert division.stages == {"0": 0, "1": 0, "2": 1, "3": 1}
        assert division.chains["0"] == division.chains["2"] != division.chains["1"]

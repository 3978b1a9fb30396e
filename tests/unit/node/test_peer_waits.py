"""Who waits for peers is asked in one place: what a step counts as waiting, a hang knows too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hang_scene import Scene, staged

from dfx_agent.facts.steps import PEER_WAITS
from dfx_agent.wire.records import WAIT

AGENT = Path(__file__).parents[3] / "dfx_agent"


@pytest.fixture
def scene(dfx_dir) -> Iterator[Scene]:
    with staged(dfx_dir) as scene:
        yield scene


@pytest.mark.parametrize("kind", sorted(PEER_WAITS))
def test_a_rank_for_which_the_others_wait_in_vain_is_named(scene, kind):
    ranks = scene.warm_up()
    ranks[1].enters("backward")
    for rank in (ranks[0], ranks[2], ranks[3]):
        rank.enters(kind, WAIT)
    assert scene.look(8).state == "clear"
    verdict = scene.look(14)
    assert (verdict.state, verdict.ranks, verdict.stage) == ("found", ("1",), "backward")
    assert f"wait in {kind}" in verdict.summary


@pytest.mark.parametrize("kind", ["queue", "policy", "collector", "replay_batch", "remote"])
def test_who_waits_for_somebody_else_accuses_no_peer(scene, kind):
    ranks = scene.warm_up()
    ranks[1].enters("backward")
    for rank in (ranks[0], ranks[2], ranks[3]):
        rank.enters(kind, WAIT)
    assert scene.look(60).ranks == ()


def test_the_kinds_stand_in_one_file():
    places = [
        path.name
        for room in ("agent", "facts", "judge", "node")
        for path in (AGENT / room).rglob("*.py")
        if '"sync_coordination"' in path.read_text()
    ]
    assert places == ["steps.py"]

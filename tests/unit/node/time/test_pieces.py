"""The stretches that a step keeps for timelines: the first 256, whatever comes after is counted."""

from __future__ import annotations

from dfx_agent.node.time.pieces import Pieces
from dfx_agent.node.time.sweep import Owners, Stretches


def test_similar_neighbours_are_merged_and_the_rest_is_counted() -> None:
    owners, pieces = Owners(), Pieces()
    rollout, queue = owners["rollout"], owners["rollout"].waits["queue"]
    pieces.extend(Stretches([rollout, rollout, queue], [10, 20, 30]))
    pieces.extend(Stretches([queue, owners.idle], [40, 50]))
    found = [(p.kind, p.name, p.begin_ns, p.end_ns) for p in pieces.rows(5)]
    assert found == [
        ("stage", "rollout", 5, 20),
        ("wait", "queue", 20, 40),
        ("idle", "idle", 40, 50),
    ]
    assert (pieces.idle(5, 10), pieces.idle(5, 11)) == ([(40, 50)], [])
    pieces.extend(Stretches([rollout, queue] * 150, list(range(51, 351))))
    assert (len(pieces), pieces.num_omitted) == (256, 300 - 253)
    pieces.extend(Stretches([rollout], [400]))
    assert (len(pieces), pieces.num_omitted) == (256, 300 - 253 + 1)

"""Kinds of waits, and which of them are waits for ranks of the same role (peers).

UniLab's learners synchronise in sync_coordination. In queue, policy, collector, replay_batch and
remote a rank waits for a process of another role.
"""

from __future__ import annotations

SYNC_COORDINATION = "sync_coordination"
PEER_WAITS = frozenset({"collective", "barrier", SYNC_COORDINATION})
# waits in which a rank has no data to train on
SAMPLE_WAITS = ("collector", "queue")

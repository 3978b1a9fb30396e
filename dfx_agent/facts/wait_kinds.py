"""Kinds of waits, and which are for ranks of the same role: the one answer to who waits for peers.

UniLab's learners meet in sync_coordination. In queue, policy, collector, replay_batch and remote a
rank waits for somebody else.
"""

from __future__ import annotations

SYNC_COORDINATION = "sync_coordination"
PEER_WAITS = frozenset({"collective", "barrier", SYNC_COORDINATION})
# in these a rank has nothing to train on
SAMPLE_WAITS = ("collector", "queue")

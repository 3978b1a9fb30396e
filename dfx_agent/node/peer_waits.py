"""Which waits are for ranks of the same role: the one answer to who waits for peers.

UniLab's learners meet in sync_coordination. In queue, policy, collector, replay_batch and remote a
rank waits for somebody else.
"""

from __future__ import annotations

PEER_WAITS = frozenset({"collective", "barrier", "sync_coordination"})

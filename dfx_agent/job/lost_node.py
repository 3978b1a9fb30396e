"""Verdicts on lost nodes: the host does not answer, and other ranks need the ranks of the node.

A node without a connection to the hub is not lost if its ranks still take part in collectives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dfx_agent.base.text import capitalized, seconds_text
from dfx_agent.job.roster import Presence
from dfx_agent.job.sentences import NODE_LOST
from dfx_agent.judge.words import labels_text
from dfx_agent.snapshot import Verdict

CAUSE = "node lost"
# after the last report, peers that wait this long confirm that the ranks are lost too
WAIT_SECONDS = 5.0
# the same if its ranks still took part in collectives after its last report
WAIT_LONGER_SECONDS = 30.0
# without waiting peers, as in a long rollout, the host must be unreachable for longer
ALONE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Peers:
    """Ranks of connected nodes that wait in a collective, and the longest wait."""

    waiting: tuple[str, ...] = ()
    wait_seconds: float = 0.0


def is_lost(presence: Presence, peers: Peers) -> bool:
    """Whether ranks of the job are lost with this node, as far as the hub can tell."""
    if presence.is_connected or presence.has_left or not presence.labels:
        return False
    if presence.reach != "no answer":
        return False
    needed_seconds = WAIT_LONGER_SECONDS if presence.has_progressed else WAIT_SECONDS
    if peers.waiting and peers.wait_seconds >= needed_seconds:
        return True
    return not presence.has_progressed and presence.silent_seconds >= ALONE_SECONDS


def lost_verdict(
    role: str, presence: Presence, labels: Sequence[str], peers: Peers, now_seconds: float
) -> Verdict:
    """``labels``: the ranks of this role that were alive in the node's last report."""
    ranks, waiting = labels_text(labels), labels_text(peers.waiting)
    does = "waits" if len(peers.waiting) == 1 else "wait"
    wait = f" {capitalized(waiting)} {does} for it." if peers.waiting else ""
    seconds = seconds_text(presence.silent_seconds)
    return Verdict(
        kind="crash",
        state="found",
        role=role,
        summary=NODE_LOST(node=presence.node, ranks=ranks, seconds=seconds, wait=wait),
        ranks=tuple(labels),
        cause=CAUSE,
        since_seconds=now_seconds - presence.silent_seconds,
        evidence=_evidence(presence, peers),
        action=NODE_LOST.action_text(node=presence.node),
    )


def with_lost_nodes(verdicts: Iterable[Verdict], lost: Sequence[Verdict]) -> list[Verdict]:
    """All verdicts; a lost node explains later crashes of its role, so it replaces them."""
    judged = list(verdicts)
    shown = {v.role: v for v in lost if not any(_is_earlier(crash, v) for crash in judged)}
    others = [v for v in judged if v.kind != "crash" or v.role not in shown]
    return [*others, *shown.values()]


def _is_earlier(crash: Verdict, lost: Verdict) -> bool:
    """Whether this is a crash of the same role that began before the node was lost."""
    if (crash.kind, crash.role, crash.state) != ("crash", lost.role, "found"):
        return False
    return (crash.since_seconds or 0.0) < (lost.since_seconds or 0.0)


def _evidence(presence: Presence, peers: Peers) -> tuple[str, ...]:
    lines = [
        f"{presence.node}: last report {seconds_text(presence.silent_seconds)} ago",
        f"{presence.node}: no TCP connection to its agent",
    ]
    if peers.waiting:
        lines.append(
            f"{labels_text(peers.waiting)}: blocked in a collective for "
            f"{seconds_text(peers.wait_seconds)}"
        )
    return tuple(lines)

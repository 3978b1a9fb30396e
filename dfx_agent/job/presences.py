"""The connection state of every node of a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dfx_agent.facts.seat import LOG_ROLE
from dfx_agent.hub.node_facts import NodeRun
from dfx_agent.job.fold import JobFold
from dfx_agent.job.lost_node import Peers
from dfx_agent.job.roster import Presence, has_progressed

_MOVING_NS = 10 * 10**9
# longest time between two reports: a node may have lived this long after its last report
_REPORTED_NS = 5 * 10**9


def presences(fold: JobFold) -> list[Presence]:
    """One presence for every node of the job."""
    elsewhere: dict[str, int] = {}
    moved_ns = met_ns = 0
    for node in fold.connected:
        shift_ns = fold.shift(node).ns
        for rank in node.ranks.values():
            moved_ns = max(moved_ns, shift_ns + rank.moved_ns)
            met_ns = max([met_ns, *(shift_ns + ns for ns in rank.group_moved_ns.values())])
            for group, number in rank.reached.items():
                elsewhere[group] = max(number, elsewhere.get(group, -1))
    return [_presence(fold, node, elsewhere, moved_ns, met_ns) for node in fold.nodes.values()]


def _presence(
    fold: JobFold, node: NodeRun, elsewhere: Mapping[str, int], moved_ns: int, met_ns: int
) -> Presence:
    """``moved_ns``, ``met_ns``: when connected ranks last progressed, and last in a collective."""
    reached = [rank.reached for rank in node.ranks.values() if rank.is_living]
    has_met = has_progressed(reached, elsewhere)
    return Presence(
        node.node,
        node.silent_seconds(fold.here_ns),
        tuple(_own_labels(fold, node)),
        has_left=node.has_left,
        takes_part=has_met and fold.here_ns - moved_ns < _MOVING_NS,
        has_progressed=bool(has_met) and met_ns - node.received_ns > _REPORTED_NS,
        reach=fold.reach.get(node.node),
    )


def silent_roles(fold: JobFold, node: str) -> set[str]:
    """Roles of the living processes of a node that does not report."""
    node_run = fold.nodes[node]
    if fold.is_connected(node):
        return set()
    own = set(_own_labels(fold, node_run))
    return {seat.role for seat in node_run.seats if seat.label in own}


def lost_labels(fold: JobFold, node: str) -> dict[str, tuple[str, ...]]:
    """Role -> ranks that were alive in the last report of this node, as the job calls them."""
    node_run = fold.nodes[node]
    own = set(_own_labels(fold, node_run))
    labels_by_role: dict[str, list[str]] = {}
    for seat in node_run.seats:
        if seat.role != LOG_ROLE and seat.label in own:
            labels_by_role.setdefault(seat.role, []).append(seat.label)
    return {
        role: tuple(sorted(labels, key=lambda label: (len(label), label)))
        for role, labels in labels_by_role.items()
    }


def blocked_peers(fold: JobFold) -> Peers:
    """Ranks of connected nodes that wait in a collective, and for how long the first has."""
    waiting: dict[str, int] = {}
    for node in fold.connected:
        shift_ns = fold.shift(node).ns
        for (role, label), rank in node.ranks.items():
            if rank.is_living and rank.arrivals:
                begin_ns = min(arrival.begin_ns for arrival in rank.arrivals) + shift_ns
                waiting[fold.owners.label(node.node, role, label)] = begin_ns
    since_ns = min(waiting.values(), default=fold.here_ns)
    return Peers(tuple(waiting), (fold.here_ns - since_ns) / 1e9)


def _own_labels(fold: JobFold, node: NodeRun) -> Iterator[str]:
    """Labels of living processes of this node that no process of another node has replaced."""
    for seat in node.seats:
        is_own = fold.owners.owner(seat.role, seat.label) == node.node
        if seat.is_living and is_own and seat.role != LOG_ROLE:
            yield seat.label

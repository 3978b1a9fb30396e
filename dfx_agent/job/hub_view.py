"""The hub's view of a job: disconnected and lost nodes, and ranks that have not joined yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from dfx_agent.base.text import capitalized, joined, seconds_text
from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.seat import LOG_ROLE
from dfx_agent.hub.node_facts import NodeRun
from dfx_agent.job.fold import JobFold
from dfx_agent.job.incidents import sentences
from dfx_agent.job.job import Job
from dfx_agent.job.rendezvous import launch_verdict, rendezvous_verdict
from dfx_agent.job.roster import (
    SILENT_SECONDS,
    Peers,
    Presence,
    has_progressed,
    is_lost,
    lost_verdict,
    missing_text,
    with_lost_nodes,
)
from dfx_agent.judge.part_of_job import PART_OF_JOB, THIS_NODE_ONLY
from dfx_agent.judge.words import labels_text, places_text
from dfx_agent.snapshot import RunRow, Verdict
from dfx_agent.snapshot.faults import unclear

# a node without a report for this long is not waited for: later reports are queued in the hub
LATE_SECONDS = SILENT_SECONDS + 5.0
_MOVING_NS = 10 * 10**9
# longest time between two reports: a node may have lived this long after its last report
_REPORTED_NS = 5 * 10**9
_OF_RANKS = frozenset({"hang", "straggler", "crash", "memory"})


class HubView:
    """The view of one job at the current time. ``ranks``: the judged ranks by role."""

    def __init__(self, fold: JobFold, ranks: Mapping[str, Sequence[RankFacts]]) -> None:
        self._fold, self._ranks = fold, ranks
        self._presences = presences(fold)
        self._unsure = self._reasons()
        self._seats = [seat for _, seat in fold.seats() if seat.role != LOG_ROLE]

    @property
    def is_unsure(self) -> bool:
        """Whether some ranks of a role are not visible."""
        return bool(self._unsure)

    def of_ranks(self, verdicts: Iterable[Verdict]) -> Iterable[Verdict]:
        """Verdicts with the missing ranks, the reason why some are not judged, and lost nodes."""
        explained = [
            _with_reason(verdict, self._unsure.get(verdict.role, "")) for verdict in verdicts
        ]
        explained = [self._rendezvous_first(verdict) for verdict in explained]
        return with_lost_nodes(explained, list(self._lost()))

    def of_all(self, verdicts: Iterable[Verdict]) -> Iterable[Verdict]:
        """Verdicts with the nodes of the blamed ranks, and one on what torchrun waits for."""
        fold = self._fold
        launch = launch_verdict(fold.launched, fold.idle_nodes, fold.here_ns)
        named = (self._named(verdict) for verdict in (*verdicts, *filter(None, (launch,))))
        return self._where_it_fails(named)

    def _rendezvous_first(self, verdict: Verdict) -> Verdict:
        """The rendezvous verdict if ranks still wait for missing ranks, else ``verdict``."""
        role = verdict.role
        if verdict.kind != "hang" or verdict.state == "found" or not self._ranks.get(role):
            return verdict
        missing = missing_text(self._seats, role, self._fold.idle_nodes)
        return rendezvous_verdict(role, self._ranks[role], missing) or verdict

    def _lost(self) -> Iterable[Verdict]:
        """Verdicts on lost nodes. None if no node is connected: then the hub itself is cut off."""
        fold = self._fold
        peers = blocked_peers(fold) if fold.connected else Peers()
        for presence in self._presences if fold.connected else ():
            if is_lost(presence, peers):
                labels_by_role = lost_labels(fold, presence.node)
                for role, labels in labels_by_role.items():
                    yield lost_verdict(role, presence, labels, peers, fold.here_seconds)

    def _reasons(self) -> dict[str, str]:
        """Role -> why some of its ranks cannot be judged. A disconnected node counts as joined."""
        fold, found = self._fold, {}
        seats = [s for _, s in fold.seats(of_connected=False) if s.role != LOG_ROLE]
        roles = {seat.role for seat in seats}
        for role in roles:
            silent = [
                str(presence)
                for presence in self._presences
                if role in silent_roles(fold, presence.node)
            ]
            claimed = (
                f"{labels_text([label])} is claimed by "
                f"{' and '.join(sorted({fold.owners.owner(claimed_role, label), *claimants}))}"
                for (claimed_role, label), nodes in fold.owners.clashes.items()
                if claimed_role == role and (claimants := set(filter(fold.is_connected, nodes)))
            )
            texts = [*claimed, *silent, missing_text(seats, role, fold.idle_nodes)]
            if any(texts):
                found[role] = joined(texts)
        return found

    def _named(self, verdict: Verdict) -> Verdict:
        """The verdict with the nodes of the blamed ranks added if its summary names only ranks."""
        fold = self._fold
        if len(fold.nodes) < 2 or not verdict.ranks:
            return verdict
        ranks = labels_text(verdict.ranks)
        nodes = {label: fold.owners.owner(verdict.role, label) for label in verdict.ranks}
        named = places_text(nodes)
        for begin, text in ((ranks, named), (capitalized(ranks), capitalized(named))):
            if verdict.summary.startswith(f"{begin} ") and not verdict.summary.startswith(text):
                return replace(verdict, summary=text + verdict.summary[len(begin) :])
        return verdict

    def _where_it_fails(self, verdicts: Iterable[Verdict]) -> Iterable[Verdict]:
        """No verdict is clear while a node cannot read or judge something."""
        failing = [node for node in self._fold.connected if node.facts.failing]
        for verdict in verdicts:
            reason = f"on {failing[0].node}: {failing[0].facts.failing}" if failing else ""
            yield unclear(verdict, reason) if reason else verdict


class HubJob(Job):
    """One job of a hub; ``row`` evaluates it."""

    def row(self) -> RunRow:
        """The row of the job, judged at the current time of its fold."""
        fold = self.fold
        fold.close()
        ranks = fold.ranks()
        view = HubView(fold, {role: facts for role, facts in ranks.items() if facts is not None})
        # a rank that is not visible may make progress
        quiet_seconds = 0.0 if view.is_unsure else fold.quiet_seconds
        self.judge.judge_waits(ranks, quiet_seconds, fold.now_ns / 1e9)
        late = fold.late_seconds
        doubts = [sentences.LATE_FACTS(late=seconds_text(late))] if late > LATE_SECONDS else []
        return self.concluded(self.rows.run(self.verdicts(view), self.rows.ranks()), doubts=doubts)


def _with_reason(verdict: Verdict, reason: str) -> Verdict:
    """The verdict with the reason why some ranks are not judged; it is not clear then."""
    if verdict.cause == PART_OF_JOB and not reason:
        return replace(verdict, summary=verdict.summary.removeprefix(THIS_NODE_ONLY))
    if not reason or verdict.kind not in _OF_RANKS or verdict.state == "found":
        return verdict
    if verdict.state == "clear":
        verdict = unclear(verdict, reason)
        return replace(verdict, cause=verdict.cause or PART_OF_JOB)
    if verdict.cause == PART_OF_JOB:
        return replace(verdict, summary=reason)
    return replace(verdict, summary=joined((verdict.summary, reason)))


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

"""The judges of one node, given the facts of all, and what a silent node leaves unsure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from dfx_agent.base.text import capitalized, joined
from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.seat import LOG_ROLE, Seat
from dfx_agent.job.fold import JobFold
from dfx_agent.job.lost_node import Peers, is_lost, lost_verdict, with_lost_nodes
from dfx_agent.job.rendezvous import launch_verdict, rendezvous_verdict
from dfx_agent.job.roster import Presence, missing_text
from dfx_agent.judge.divergence.verdict import broken_verdict, divergence_verdict, unseen_verdict
from dfx_agent.judge.hang.judge import HangJudge
from dfx_agent.judge.memory.judge import MemoryJudge
from dfx_agent.judge.part_of_job import HERE_ONLY, PART_OF_JOB, only_what_is_seen
from dfx_agent.judge.reconcile import Pace, paces, reconciled
from dfx_agent.judge.reported import with_reported
from dfx_agent.judge.straggler.judge import StragglerJudge
from dfx_agent.judge.words import labels_text, places_text
from dfx_agent.snapshot import Verdict
from dfx_agent.snapshot.faults import unclear

_OF_RANKS = frozenset({"hang", "straggler", "crash", "memory"})


class JobJudge:
    """One job; ``verdicts`` each time that somebody looks."""

    def __init__(self, fold: JobFold) -> None:
        self._fold = fold
        self._hangs = HangJudge(fold.faults, fold.run)
        self._stragglers = StragglerJudge()
        self._memory = MemoryJudge()

    def verdicts(self) -> tuple[Verdict, ...]:
        """What is concluded as of the newest instant that all nodes that are heard have told."""
        fold = self._fold
        judged, run = fold.faults.judged, fold.run
        seats = [seat for _, seat in fold.seats() if seat.role != LOG_ROLE]
        presences = fold.presences()
        unsure = self._unsure(presences)
        ranks = {role: known for role, known in fold.ranks().items() if role != LOG_ROLE}
        stragglers = (
            judged(run, "straggler", role, partial(self._straggler, role))
            for role in (ranks if fold.heard else ())
        )
        of_ranks = [*self._waits(ranks, is_sure=not unsure), *filter(None, stragglers)]
        memory = fold.faults.judged_roles(
            run, "memory", lambda: self._memory.verdicts(fold.memory(), fold.here_seconds)
        )
        found = (*with_reported(only_what_is_seen(of_ranks, seats), fold.reported()), *memory)
        told = [_with_reason(verdict, unsure.get(verdict.role, "")) for verdict in found]
        told = [self._meeting(verdict, ranks, seats) for verdict in told]
        told = with_lost_nodes(told, list(self._lost(presences)))
        of_run = (
            judged(run, "divergence", "", self._divergence),
            judged(run, "data", "", fold.ledger.verdict),
            launch_verdict(fold.launched, fold.idle_nodes, fold.here_ns),
        )
        named = (self._named(verdict) for verdict in (*told, *filter(None, of_run)))
        return reconciled(self._where_it_fails(named), self._paces())

    def _paces(self) -> dict[str, Pace]:
        fold = self._fold
        living = {seat.role for _, seat in fold.seats() if seat.is_living}
        spans = {
            role: [(step.begin_seconds, step.end_seconds) for step in steps.rows]
            for role, steps in fold.steps.items()
            if role in living
        }
        return paces(spans, fold.here_seconds)

    def _waits(
        self, ranks: Mapping[str, Sequence[RankFacts]], *, is_sure: bool
    ) -> Iterable[Verdict]:
        """Hangs and crashes; who has just moved cannot stand, and waits for nobody for long."""
        fold = self._fold
        quiet = (node.facts.quiet_seconds for node in fold.heard)
        quiet_seconds = min(quiet, default=0.0) if is_sure else 0.0  # who is not seen may move
        return self._hangs.verdicts(ranks, quiet_seconds, fold.now_ns / 1e9)

    def _meeting(
        self, verdict: Verdict, ranks: Mapping[str, Sequence[RankFacts]], seats: Sequence[Seat]
    ) -> Verdict:
        """Of ranks that have not met, whom they wait for."""
        role = verdict.role
        if verdict.kind != "hang" or verdict.state == "found" or not ranks.get(role):
            return verdict
        missing = missing_text(seats, role, self._fold.idle_nodes)
        return rendezvous_verdict(role, ranks[role], missing) or verdict

    def _lost(self, presences: Sequence[Presence]) -> Iterable[Verdict]:
        """Nodes that are lost with ranks; not if no node is connected: then the hub is cut off."""
        fold = self._fold
        peers = fold.blocked_peers() if fold.heard else Peers()
        for presence in presences if fold.heard else ():
            if is_lost(presence, peers):
                labels_by_role = fold.lost_labels(presence.node)
                for role, labels in labels_by_role.items():
                    yield lost_verdict(role, presence, labels, peers, fold.here_seconds)

    def _straggler(self, role: str) -> Verdict | None:
        """None for a role whose processes never meet, while others make steps."""
        stepping, grouped = self._fold.counts_steps()
        if stepping - {role} and role not in stepping | grouped:
            return None
        return self._stragglers.verdict(self._fold.role_steps(role))

    def _divergence(self) -> Verdict | None:
        """None for a run that makes no steps of an optimizer: there is nothing to judge."""
        health, updates = self._fold.health, self._fold.updates()
        state, role = health.state, next(iter(health.roles), "")
        breaks = health.broken.breaks(is_scaled=any(told.num_left_out for told in updates))
        if breaks:
            return broken_verdict(breaks, state, role)
        skipped = self._fold.skipped_updates.verdict()
        if skipped is not None:
            return skipped
        if state is None:
            roles = (told.process.role for told in updates if told.num_made > 0)
            trainer = min(roles, default=None)
            return None if trainer is None else unseen_verdict(trainer)
        return divergence_verdict(state, role, health.critical, self._checkpoints())

    def _checkpoints(self) -> set[int]:
        """Steps, of those kept, in which a rank was in the stage of that name."""
        return {number for steps in self._fold.steps.values() for number in steps.checkpoints}

    def _unsure(self, presences: Sequence[Presence]) -> dict[str, str]:
        """Role -> why not all of its ranks can be judged. Who is silent had joined."""
        fold, found = self._fold, {}
        everybody = [s for _, s in fold.seats(of_heard=False) if s.role != LOG_ROLE]
        roles = {seat.role for seat in everybody}
        for role in roles:
            silent = [str(each) for each in presences if role in fold.silent_roles(each.node)]
            claimed = (
                f"{labels_text([label])} is claimed by "
                f"{' and '.join(sorted({fold.places.owner(of, label), *heard}))}"
                for (of, label), nodes in fold.places.clashes.items()
                if of == role and (heard := set(filter(fold.is_heard, nodes)))
            )
            texts = [*claimed, *silent, missing_text(everybody, role, fold.idle_nodes)]
            if any(texts):
                found[role] = joined(texts)
        return found

    def _named(self, verdict: Verdict) -> Verdict:
        """With the nodes of the ranks that are to blame, where it says ranks alone."""
        fold = self._fold
        if len(fold.nodes) < 2 or not verdict.ranks:
            return verdict
        ranks = labels_text(verdict.ranks)
        nodes = {label: fold.places.owner(verdict.role, label) for label in verdict.ranks}
        named = places_text(nodes)
        for begin, text in ((ranks, named), (capitalized(ranks), capitalized(named))):
            if verdict.summary.startswith(f"{begin} ") and not verdict.summary.startswith(text):
                return replace(verdict, summary=text + verdict.summary[len(begin) :])
        return verdict

    def _where_it_fails(self, verdicts: Iterable[Verdict]) -> Iterable[Verdict]:
        """While a node cannot read or judge something, nothing of it is clear."""
        failing = [node for node in self._fold.heard if node.facts.failing]
        for verdict in verdicts:
            reason = f"on {failing[0].node}: {failing[0].facts.failing}" if failing else ""
            yield unclear(verdict, reason) if reason else verdict


def _with_reason(verdict: Verdict, reason: str) -> Verdict:
    """What is not seen of a role, where it is not clear for that alone."""
    if verdict.cause == PART_OF_JOB and not reason:
        return replace(verdict, summary=verdict.summary.removeprefix(HERE_ONLY))
    if not reason or verdict.kind not in _OF_RANKS or verdict.state == "found":
        return verdict
    if verdict.state == "clear":
        verdict = unclear(verdict, reason)
        return replace(verdict, cause=verdict.cause or PART_OF_JOB)
    if verdict.cause == PART_OF_JOB:
        return replace(verdict, summary=reason)
    return replace(verdict, summary=joined((verdict.summary, reason)))

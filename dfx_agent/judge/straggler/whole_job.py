"""Stragglers of a job whose ranks do different work, or are on several nodes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import median

from dfx_agent.base.text import capitalized, seconds_text
from dfx_agent.facts.steps import IDLE, Step
from dfx_agent.judge.straggler import sentences
from dfx_agent.judge.straggler.causes import excess_parts
from dfx_agent.judge.straggler.columns import RoleColumns, only
from dfx_agent.judge.straggler.comparable_ranks import Division
from dfx_agent.judge.straggler.comparison import (
    BLIND_SHARE,
    TOGETHER_SHARE,
    Comparison,
    Context,
    Suspect,
    busy_verdict,
    no_fault,
)
from dfx_agent.judge.straggler.single_steps import MIN_EFFECT, SMALLEST_SHARE, span
from dfx_agent.judge.straggler.workload import BATCHES, UnevenWork, Workload
from dfx_agent.judge.words import labels_text, percent
from dfx_agent.snapshot import Verdict
from dfx_agent.snapshot.verdict import VerdictState

SLOW_NODE = "slow node"

_MOST_OF_A_NODE = 0.75
_ALL = 0.9


@dataclass(frozen=True, slots=True)
class _Slow:
    """A suspect, compared with its peers."""

    peers: Comparison
    suspect: Suspect
    cost_seconds: float
    """How much longer each step takes because of it."""

    @property
    def rank(self) -> str:
        return self.suspect.rank


class WholeJob:
    """Compares ranks within each cell of peers, and computes their cost for the whole step."""

    def __init__(
        self,
        role: str,
        steps: Sequence[Step],
        context: Context,
        division: Division,
        columns: RoleColumns,
    ) -> None:
        self._role, self._steps, self._division = role, steps, division
        self._context = context
        columns.all_ranks.set_steps(steps)
        peers = columns.by_cell(cell for cell in division.cells if len(cell) > 1)
        self._cells = [
            Comparison(
                role, [columns.all_ranks.part(step, cell) for step in steps],
                replace(context, looks=[only(look, cell) for look in context.looks]), cell_columns,
            )
            for cell, cell_columns in peers.items()
        ]  # fmt: skip
        self._workload = Workload(steps, division)
        self._step_seconds = median(
            rank_step.wall_seconds for step in steps[-5:] for rank_step in step.ranks.values()
        )

    def verdict(self) -> Verdict:
        suspects = [(cell, suspect) for cell in self._cells for suspect in cell.suspects()]
        slow = self._felt(suspects) if suspects else []
        if slow:
            return self._refused(slow) or self._named(slow)
        busy = busy_verdict(self._role, self._steps, self._step_seconds)
        if busy is not None:
            return busy
        findings = self._workload.findings(self._step_seconds)
        if findings:
            return self._nothing(findings)
        single = (cell.single_steps() for cell in self._cells)
        return next((verdict for verdict in single if verdict), None) or self._nothing(())

    def _felt(self, suspects: Sequence[tuple[Comparison, Suspect]]) -> list[_Slow]:
        """Suspects that make the step longer, the most expensive first."""
        if not self._division.stages:
            slow = [_Slow(cell, suspect, suspect.lost_seconds) for cell, suspect in suspects]
            return sorted(slow, key=lambda suspect: -suspect.cost_seconds)
        sure = {suspect.rank: self._sure_excess(suspect) for _, suspect in suspects}
        num_steps = min((suspect.num_steps for _, suspect in suspects), default=0)
        costs = self._workload.cost_seconds(sure, num_steps)
        least = SMALLEST_SHARE * self._step_seconds
        slow = [
            _Slow(cell, suspect, costs[suspect.rank])
            for cell, suspect in suspects
            if costs[suspect.rank] >= least
            and sure[suspect.rank] >= MIN_EFFECT * suspect.excess_seconds
        ]
        return sorted(slow, key=lambda suspect: -suspect.cost_seconds)

    def _sure_excess(self, suspect: Suspect) -> float:
        parts = excess_parts(self._peer_steps(suspect.rank, suspect.num_steps), suspect.rank)
        outside = parts.get(IDLE, 0.0)
        return self._workload.sure_excess(suspect.excess_seconds, outside)

    def _peer_steps(self, rank: str, num_steps: int) -> list[Step]:
        cell = next(cell for cell in self._division.cells if rank in cell)
        return [only(step, cell) for step in self._steps[-num_steps:]]

    def _refused(self, slow: Sequence[_Slow]) -> Verdict | None:
        return slow[0].peers.refused([slow[0].suspect])

    def _named(self, slow: Sequence[_Slow]) -> Verdict:
        worst = slow[0]
        together = [
            suspect
            for suspect in slow
            if suspect.cost_seconds >= TOGETHER_SHARE * worst.cost_seconds
        ]
        node = self._slow_node({suspect.rank for suspect in slow})
        if node:
            return self._node(node, worst)
        chain = self._whole_chain({suspect.rank for suspect in slow}, worst.rank)
        if chain:
            return self._longer_batches(chain, worst)
        ranks, num_ranks = [suspect.rank for suspect in together], len(self._steps[-1].ranks)
        slow_ranks = (
            ranks if self._context.is_layout_known else worst.peers.similar([worst.suspect])
        )
        other_work = no_fault(
            self._role, slow_ranks, num_ranks, worst.peers.cost_text(worst.suspect),
            is_same_work=self._context.is_layout_known,
        )  # fmt: skip
        return other_work or self._found(worst, ranks)

    def _found(self, worst: _Slow, ranks: Sequence[str]) -> Verdict:
        alone = worst.peers.found([worst.suspect])
        share = worst.cost_seconds / self._step_seconds
        # if another stage is nearly as long, the exact cost depends on the order of waits
        is_exact = worst.cost_seconds >= _ALL * worst.suspect.excess_seconds
        num_peers = len(worst.peers.ranks) - 1
        text = sentences.FOUND_AMONG_PEERS(
            ranks=capitalized(labels_text(ranks)),
            make="makes" if len(ranks) == 1 else "make",
            up_to="" if is_exact or not self._division.stages else "up to ",
            seconds=seconds_text(worst.cost_seconds),
            share=percent(share),
            worst="It" if len(ranks) == 1 else capitalized(labels_text([worst.rank])),
            excess=seconds_text(worst.suspect.excess_seconds),
            peers=f"{num_peers} peer{'s' * (num_peers > 1)}{self._stage_text(worst.rank)}",
            cause=worst.peers.cause(worst.suspect).text,
        )
        findings = self._workload.findings(self._step_seconds)
        return replace(
            alone, ranks=tuple(ranks), summary=text, lost_seconds=worst.cost_seconds,
            evidence=(*alone.evidence, *(finding.text for finding in findings)),
        )  # fmt: skip

    def _stage_text(self, rank: str) -> str:
        stage = self._division.stages.get(rank)
        if stage is None:
            return ""
        return f" in pipeline stage {stage + 1} of {self._division.num_stages}"

    def _slow_node(self, slow: Collection[str]) -> str:
        """The node of all slow ranks, if most of its ranks with peers on other nodes are slow."""
        nodes = self._division.nodes
        of_slow = {nodes.get(rank, "") for rank in slow}
        node = of_slow.pop() if len(of_slow) == 1 else ""
        if not node or len(set(nodes.values())) < 2:
            return ""
        comparable = {
            rank
            for cell in self._division.cells
            for rank in cell
            if nodes.get(rank) == node and any(nodes.get(other) != node for other in cell)
        }
        is_most = len(comparable & set(slow)) >= max(2, _MOST_OF_A_NODE * len(comparable))
        return node if is_most else ""

    def _node(self, node: str, worst: _Slow) -> Verdict:
        alone = worst.peers.found([worst.suspect])
        ranks = tuple(rank for rank, on in self._division.nodes.items() if on == node)
        summary = sentences.SLOW_NODE(
            node=node,
            seconds=seconds_text(worst.cost_seconds),
            share=percent(worst.cost_seconds / self._step_seconds),
            cause=worst.peers.cause(worst.suspect).text,
        )
        return replace(
            alone, ranks=ranks, summary=summary, cause=SLOW_NODE, lost_seconds=worst.cost_seconds
        )

    def _whole_chain(self, slow: Collection[str], rank: str) -> list[str]:
        """All ranks of the pipeline of ``rank``; [] unless all are slow, by longer batches."""
        chains = self._division.chains
        chain = [other for other, name in chains.items() if name == chains.get(rank)]
        return chain if len(chain) > 1 and set(chain) <= set(slow) else []

    def _longer_batches(self, chain: Sequence[str], worst: _Slow) -> Verdict:
        seconds = seconds_text(worst.cost_seconds)
        text = sentences.LONGER_BATCHES(ranks=capitalized(labels_text(chain)), seconds=seconds)
        return self._nothing([UnevenWork(BATCHES, text, worst.cost_seconds)])

    def _nothing(self, findings: Sequence[UnevenWork]) -> Verdict:
        """The verdict if no rank is slow: clear, unless only a huge excess would be visible."""
        num_alone = sum(len(cell) == 1 for cell in self._division.cells)
        limit = max((cell.reach_seconds() for cell in self._cells), default=0.0)
        words = {"share": percent(limit / self._step_seconds), "seconds": seconds_text(limit)}
        state: VerdictState = "insufficient evidence"
        if num_alone:
            text = sentences.NO_PEERS(num_ranks=num_alone)
        elif limit > BLIND_SHARE * self._step_seconds:
            text = sentences.TOO_NOISY(steps=span(self._steps), **words)
        else:
            state, text = "clear", sentences.NO_SLOW_PEER(**words)
        first = findings[0] if findings else UnevenWork("", "", 0.0)
        return Verdict(
            "straggler",
            state,
            self._role,
            " ".join([*(finding.text for finding in findings), text]),
            stage=first.stage,
            cause=first.word,
            step=self._steps[-1].step,
            lost_seconds=first.seconds if findings else None,
        )

"""Stragglers of a run over time: who was named needs less to stay named."""

from __future__ import annotations

from dfx_agent.facts.layout import NOT_TOLD, Layout
from dfx_agent.facts.steps import RoleSteps
from dfx_agent.judge.straggler.columns import Remembered
from dfx_agent.judge.straggler.devices import with_device
from dfx_agent.judge.straggler.division import Division, divided
from dfx_agent.judge.straggler.verdict import straggler_verdict
from dfx_agent.judge.straggler.witnesses import Looks
from dfx_agent.snapshot import Verdict


class StragglerJudge:
    """All roles of one run; a role is judged anew when a step came."""

    def __init__(self) -> None:
        self._judged: dict[str, tuple[RoleSteps, Verdict]] = {}
        self._remembered: dict[str, Remembered] = {}
        self._looks: dict[str, Looks] = {}
        self._divisions: dict[str, tuple[Layout, list[str], Division]] = {}

    def verdict(self, facts: RoleSteps) -> Verdict | None:
        """None for a role that one rank in the whole job has."""
        if facts.num_ranks == 1 and facts.world_size <= 1:
            return None
        known, before = self._judged.get(facts.role, (None, None))
        if known is None or before is None or _is_news(known, facts):
            named = before.ranks if before is not None and before.state == "found" else ()
            before = straggler_verdict(
                facts.role, facts.steps, facts.coverage_ratio, named, self._division(facts),
                self._remembered.setdefault(facts.role, Remembered()),
                self._looks.setdefault(facts.role, Looks()).add(facts.steps),
            )  # fmt: skip
            self._judged[facts.role] = facts, before
        return with_device(before, facts.devices)

    def _division(self, facts: RoleSteps) -> Division | None:
        """Of the ranks in the newest step; None before there is one, or where nothing is told."""
        if not facts.steps or facts.layout == NOT_TOLD:
            return None
        ranks = list(facts.steps[-1].ranks)
        layout, known, division = self._divisions.get(facts.role, (None, None, None))
        if division is None or known != ranks or layout != facts.layout:
            division = divided(facts.layout, ranks)
            self._divisions[facts.role] = facts.layout, ranks, division
        return division


def _is_news(known: RoleSteps, facts: RoleSteps) -> bool:
    return (
        known.steps[-1:] != facts.steps[-1:]
        or known.coverage_ratio != facts.coverage_ratio
        or known.layout != facts.layout
    )

"""Runs the judges of a job of N >= 1 nodes in a fixed order and reconciles their verdicts.

Their input is ``Evidence``. Logged values that no judge needs stay on their node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from math import isfinite
from typing import Annotated, Protocol, TypeAlias

from dfx_agent.catalogue.alerts.conditions import Condition
from dfx_agent.catalogue.alerts.declared.stability import DIVERGENCE
from dfx_agent.catalogue.native import load as native_names
from dfx_agent.catalogue.native.signal_sources import clear_meaning, input_of
from dfx_agent.facts.ledger import Progress
from dfx_agent.facts.memory import MemoryFacts
from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.run import Reported
from dfx_agent.facts.scalars import ReportedScalars, ScalarRecord, UpdateCounts
from dfx_agent.facts.seat import ProcessId, Seat
from dfx_agent.facts.steps import RoleSteps
from dfx_agent.judge.bottleneck.causes import REPORTED_METRICS
from dfx_agent.judge.data.ledger import RunLedger
from dfx_agent.judge.divergence.bank import LATCH_STEPS
from dfx_agent.judge.divergence.baseline import GAP_STEPS, WARM_STEPS, WINDOW_STEPS
from dfx_agent.judge.divergence.health import RunHealth, SavedHealth
from dfx_agent.judge.divergence.history import signal_history
from dfx_agent.judge.divergence.inputs import broken_place
from dfx_agent.judge.divergence.saved_state import FORMAT_2
from dfx_agent.judge.divergence.signal import CUSUM_ALARM, CUSUM_SLACK, CUSUM_Z_CAP
from dfx_agent.judge.divergence.skipped_updates import SkippedUpdates
from dfx_agent.judge.divergence.symptoms import ACTIVE_STEPS, CALM_STEPS
from dfx_agent.judge.divergence.symptoms import SIGNALS as DETECTED
from dfx_agent.judge.divergence.verdict import broken_verdict, divergence_verdict, unseen_verdict
from dfx_agent.judge.hang.judge import KINDS, HangJudge
from dfx_agent.judge.memory.judge import MemoryJudge
from dfx_agent.judge.part_of_job import only_what_is_seen
from dfx_agent.judge.reconcile import paces, reconciled
from dfx_agent.judge.reported import with_reported
from dfx_agent.judge.straggler.judge import StragglerJudge
from dfx_agent.snapshot import DetectorParameters, SignalHistory, SignalParameters, Verdict
from dfx_agent.snapshot.faults import Faults, facts_of, unjudged

# judgements that verdicts need, as faults name them
STEPS, WAITS, SIGNALS, BATCHES = "closed steps", "waits", "signals", "batches"
# values that are only drawn, and the rank that reports them: all ranks report the same
_DRAWN, _FIRST = frozenset({"dfx_learning_rate"}), frozenset({"0"})
# parameters of the signal detector, by name
PARAMETERS = DetectorParameters(
    window_steps=WINDOW_STEPS,
    gap_steps=GAP_STEPS,
    warm_steps=WARM_STEPS,
    active_steps=ACTIVE_STEPS,
    calm_steps=CALM_STEPS,
    latch_steps=LATCH_STEPS,
    cusum_z_cap=CUSUM_Z_CAP,
    cusum_slack=CUSUM_SLACK,
    cusum_alarm=CUSUM_ALARM,
    signals=tuple(
        SignalParameters(spec.name, spec.symptom, spec.directions, spec.least, spec.scale_floor)
        for spec in DETECTED
    ),
)


# state of the signal judge that the next agent restores: baselines and progress
Signals: TypeAlias = RunHealth
Learned: TypeAlias = Annotated[SavedHealth, FORMAT_2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Facts of connected nodes on the clocks of the local host, without processes of logs."""

    now_seconds: float
    """Unix time."""
    step_clock_seconds: float
    """Now, on the clock of ``spans``: a change of the wall clock does not move it."""
    seats: Sequence[Seat]
    """Processes of the job."""
    steps: Mapping[str, Callable[[], RoleSteps]]
    """Completed steps of each role that has processes; called only where they are judged."""
    spans: Mapping[str, Sequence[tuple[float, float]]]
    """(begin, end) in Unix seconds of the latest completed steps, of roles that live."""
    stepping: Collection[str]
    """Roles with a rank that is in a step."""
    grouped: Collection[str]
    """Roles with a rank that is in a process group."""
    memory: Callable[[], Sequence[MemoryFacts]]
    reported: Sequence[Reported] = ()
    """Events that devices report."""
    checkpoints: Collection[int] = ()
    """Completed steps in which a rank saved a checkpoint."""


class JobView(Protocol):
    """Limits verdicts to what is visible: one node of the job, or all nodes of a hub."""

    def of_ranks(self, verdicts: Iterable[Verdict]) -> Iterable[Verdict]:
        """Verdicts on hangs, crashes, stragglers and memory, limited to what is visible."""
        ...

    def of_all(self, verdicts: Iterable[Verdict]) -> Iterable[Verdict]:
        """All verdicts, limited to what is visible, with the verdicts that only this view has."""
        ...


class JobJudge:
    """The judges of one job. ``waits`` and ``memory`` are the latest verdicts of these kinds."""

    parameters = PARAMETERS

    def __init__(
        self, run: str, faults: Faults, critical: Condition = DIVERGENCE.condition
    ) -> None:
        self.run, self.faults = run, faults
        self.health = RunHealth(critical)
        self.ledger = RunLedger()
        self.skipped_updates = SkippedUpdates()
        self.waits: tuple[Verdict, ...] = ()
        self.memory: tuple[Verdict, ...] = ()
        self._hangs = HangJudge(faults, run)
        self._stragglers = StragglerJudge()
        self._memory = MemoryJudge()
        self._training_roles: set[str] = set()  # that made an update
        self._is_scaled = False  # the optimizer has skipped updates, as loss scaling does

    def judge_waits(
        self,
        ranks: Mapping[str, Sequence[RankFacts] | None],
        quiet_seconds: float,
        read_seconds: float,
    ) -> tuple[Verdict, ...]:
        """A hang and a crash verdict of every role, after each reading.

        ``ranks`` by role: empty if all ranks make progress, None if facts are not available.
        """
        available = {role: facts for role, facts in ranks.items() if facts is not None}
        judged = self._hangs.verdicts(available, quiet_seconds, read_seconds)
        missing = (self._without_facts(role) for role, facts in ranks.items() if facts is None)
        self.waits = *judged, *chain.from_iterable(missing)
        return self.waits

    def close(
        self,
        reported_steps: Mapping[ProcessId, int | None],
        updates: Iterable[UpdateCounts],
        progress: Iterable[Progress],
        *,
        is_whole: bool,
    ) -> None:
        """After each reading: judge the signals and batches that are complete.

        ``reported_steps``: step that each living process reports. ``is_whole``: every rank of the
        job is visible.
        """
        with self.faults.guard("judgement", self.run, SIGNALS):
            counts = list(updates)
            self.health.close(reported_steps)
            self.skipped_updates.observe(counts)
            self._is_scaled |= any(count.num_left_out for count in counts)
            self._training_roles |= {count.process.role for count in counts if count.num_made > 0}
        with self.faults.guard("judgement", self.run, BATCHES):
            self.ledger.settle(progress, is_whole=is_whole)

    def verdicts(self, evidence: Evidence, view: JobView) -> tuple[Verdict, ...]:
        """Hang, crash, straggler and memory verdicts by role; divergence and data of the job.

        Judges are independent: if a judge fails, its verdict says so.
        """
        judged, run = self.faults.judged, self.run
        of_ranks = *self._judged_waits(evidence), *self._judged_steps(evidence)
        seen = only_what_is_seen(of_ranks, evidence.seats)
        self.memory = self.faults.judged_roles(
            run, "memory", lambda: self._memory.verdicts(evidence.memory(), evidence.now_seconds)
        )
        of_job = (
            judged(run, "divergence", "", lambda: self.divergence(evidence.checkpoints), SIGNALS),
            judged(run, "data", "", self.ledger.verdict, BATCHES),
        )
        found = view.of_ranks((*with_reported(seen, evidence.reported), *self.memory))
        shown = view.of_all((*found, *filter(None, of_job)))
        read = self.faults.without_clear(run, shown)
        return reconciled(read, paces(evidence.spans, evidence.step_clock_seconds))

    def divergence(self, checkpoints: Collection[int] = ()) -> Verdict | None:
        """None for a job that makes no optimizer steps: there is nothing to judge."""
        state, role = self.health.state, next(iter(self.health.roles), "")
        breaks = self.health.broken.breaks(is_scaled=self._is_scaled)
        if breaks:
            return broken_verdict(breaks, state, role)
        skipped = self.skipped_updates.verdict()
        if skipped is not None:
            return skipped
        if state is None:
            trainer = min(self._training_roles, default=None)
            return None if trainer is None else unseen_verdict(trainer)
        return divergence_verdict(state, role, self.health.critical, checkpoints)

    def signal_history(self, num_steps: int) -> SignalHistory:
        """Signals of the latest judged steps."""
        return signal_history(list(self.health.states)[-num_steps:])

    def _without_facts(self, role: str) -> Iterator[Verdict]:
        for kind in KINDS:
            verdict = self.faults.judged(self.run, kind, role, lambda: None, facts_of(role))
            if verdict is not None:
                yield verdict

    def _judged_waits(self, evidence: Evidence) -> Iterable[Verdict]:
        """Hang and crash verdicts of the latest reading, if it could be judged."""
        fault = self.faults.fault_in(self.run, WAITS)
        if fault is None:
            return self.waits
        roles = dict.fromkeys(seat.role for seat in evidence.seats)
        return [unjudged(kind, role, fault) for role in roles for kind in KINDS]

    def _judged_steps(self, evidence: Evidence) -> Iterator[Verdict]:
        for role in evidence.steps:
            judge = partial(self._straggler, role, evidence)
            verdict = self.faults.judged(self.run, "straggler", role, judge, STEPS)
            if verdict is not None:
                yield verdict

    def _straggler(self, role: str, evidence: Evidence) -> Verdict | None:
        """None for a role whose processes never meet, while others make steps.

        A server has neither steps nor process groups: nobody of its role waits for it.
        """
        meets = role in evidence.stepping or role in evidence.grouped
        if not meets and set(evidence.stepping) - {role}:
            return None
        return self._stragglers.verdict(evidence.steps[role]())


def is_judged(framework: str, scalar: ScalarRecord) -> bool:
    """Whether a verdict may depend on it; for some keys only if the value is NaN or Inf."""
    if input_of(framework, scalar.key) is not None:
        return True
    if clear_meaning(framework, scalar.key) is not None:
        return True
    if _metric_of(framework, scalar.key) in REPORTED_METRICS:
        return True
    return not isfinite(scalar.value) and broken_place(framework, scalar.key) is not None


def sent_scalars(reported: ReportedScalars) -> ReportedScalars | None:
    """Judged values, and values of rank 0 that are only drawn; None if there are none."""
    is_first = reported.process.label in _FIRST
    sent = tuple(
        scalar
        for scalar in reported.scalars
        if is_judged(reported.framework, scalar)
        or (is_first and _metric_of(reported.framework, scalar.key) in _DRAWN)
    )
    return replace(reported, scalars=sent) if sent else None


@lru_cache(maxsize=4096)
def _metric_of(framework: str, key: str) -> str | None:
    """The metric that this native key is exported as; None for an unknown key."""
    native = native_names(framework).find(key)
    return native.metric if native else None

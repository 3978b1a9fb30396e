"""Judges where the time of a step goes, for the latest steps of the training role.

If the roles of a job take turns, the verdict is a breakdown that adds up to the step. If training
and rollout run in parallel, the verdict names the side that limits the job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from dfx_agent.base.text import age_text
from dfx_agent.judge.bottleneck import sentences, standstill, step_window, words
from dfx_agent.judge.bottleneck.breakdown import Steps, breakdown
from dfx_agent.judge.bottleneck.causes import SAMPLES, causes, observe_reported, observe_steps
from dfx_agent.judge.bottleneck.code_samples import CodeSamples
from dfx_agent.judge.bottleneck.engine_causes import SlowEngines, StillEngines
from dfx_agent.judge.bottleneck.pipeline_facts import PipelineFacts
from dfx_agent.judge.bottleneck.sides import has_two_sides
from dfx_agent.judge.bottleneck.step_parts import StepTime, step_time
from dfx_agent.judge.bottleneck.step_shares import step_shares, training_role
from dfx_agent.judge.bottleneck.step_window import (
    LEAST_SECONDS,
    LEAST_STEPS,
    SelectedSteps,
    TotalsHistory,
)
from dfx_agent.judge.bottleneck.window import Change, FigureHistories, Moment, PipelineWindow
from dfx_agent.snapshot import Bottleneck, BoundBy, PipelineCause, StepRow, Verdict

_NUM_MOMENTS = 17
_NUM_SIDE_VOTES = 9
_KNOWN_RATIO = 0.5
# so many steps within so little time are too short to contain a cycle of the job
_MANY_STEPS, _SHORT_SECONDS = 150, 40.0
# causes that cost time of the training ranks themselves
_FELT_DIRECTLY = frozenset({"weight sync", "peers", "data"})
_BOUND_RATIO = 0.2
_GROWN_RATIO = 0.1


class BottleneckJudge:
    """The bottleneck verdict of one run. It is updated when a step of the training role closes."""

    def __init__(self) -> None:
        self._moments: deque[Moment] = deque(maxlen=_NUM_MOMENTS)
        self._habits = FigureHistories()
        self._still = StillEngines()
        self._slow = SlowEngines()
        self._totals = TotalsHistory()
        self._samples = CodeSamples()
        self._side_votes: deque[bool] = deque(maxlen=_NUM_SIDE_VOTES)
        self._judged_steps: set[tuple[str, int]] = set()
        self._judged: Bottleneck | None = None
        self._step_seconds = 0.0

    def verdict(self, facts: PipelineFacts) -> Bottleneck | None:
        """The verdict; None for a run without steps."""
        still = self._still.causes(facts.engines, facts.processes, facts.now_seconds)
        steps = {(row.role, row.step) for row in facts.steps}
        if steps != self._judged_steps:
            self._judged_steps = steps
            self._judge_latest(facts)
        hangs = [
            verdict
            for verdict in facts.verdicts
            if (verdict.kind, verdict.state) == ("hang", "found")
        ]
        still += standstill.held_loops(facts.processes)
        judged = self._judged
        if judged is None:
            return None
        paused = self._still.all_still_seconds(facts.engines, facts.now_seconds)
        quiet = standstill.quiet(judged.role, facts, self._step_seconds, paused)
        if hangs or (still and quiet is not None):
            return standstill.stalled(judged.role, still, hangs, facts)
        if quiet is None and still:  # other parts of the job continue
            return words.with_stuck(judged, still)
        return quiet or judged

    def _judge_latest(self, facts: PipelineFacts) -> None:
        role = training_role(facts.steps)
        rows = [row for row in facts.steps if row.role == role]
        if role is None or (self._moments and self._moments[-1].step == rows[-1].step):
            return
        self._moments.append(Moment.from_facts(rows[-1].step, role, facts))
        ranks = [process for process in facts.processes if process.role == role]
        self._totals.add(facts.now_seconds, rows[-1].step, ranks)
        self._samples.add(facts.now_seconds, ranks)
        self._judged = self._of_window(role, rows, facts)

    def _of_window(self, role: str, rows: Sequence[StepRow], facts: PipelineFacts) -> Bottleneck:
        rows_of_moments = rows[-_NUM_MOMENTS + 1 :]
        observe_steps(self._habits, rows_of_moments)
        steps = step_window.select(rows_of_moments, has_cycles=False)
        if len(steps.rows) < LEAST_STEPS:
            return _too_few(role, len(steps.rows))
        window = self._window(role, steps, facts)
        self._step_seconds = window.step_seconds
        observe_reported(self._habits, window)
        waited = self._habits[SAMPLES].change(_GROWN_RATIO * window.step_seconds)
        slow = self._slow.causes(window)
        stragglers = [
            verdict
            for verdict in facts.verdicts
            if (verdict.kind, verdict.role) == ("straggler", role)
        ]
        found = [*causes(window, self._habits, waited, slow), *_slow_ranks(role, stragglers)]
        self._side_votes.append(has_two_sides(window))
        if 2 * sum(self._side_votes) <= len(self._side_votes):
            return self._breakdown(role, rows, found, stragglers)
        verdict = _bound(window, found, waited, stragglers)
        return replace(verdict, parts=_time_of(steps).parts())

    def _window(self, role: str, steps: SelectedSteps, facts: PipelineFacts) -> PipelineWindow:
        shares = step_shares(steps.rows)
        moments = [moment for moment in self._moments if moment.step >= steps.rows[0].step - 1]
        return PipelineWindow(role, steps.rows, shares, moments, facts.reported, steps.left_out)

    def _breakdown(
        self,
        role: str,
        rows: Sequence[StepRow],
        found: Sequence[PipelineCause],
        stragglers: Sequence[Verdict],
    ) -> Bottleneck:
        """The breakdown of closed steps, or of running totals if steps are too short."""
        steps = step_window.select(rows)
        span = rows[-1].end_seconds - rows[0].begin_seconds
        time, first, is_uneven = _time_of(steps), steps.rows[0].step, steps.is_uneven
        if len(rows) >= _MANY_STEPS and span < _SHORT_SECONDS:
            totals = self._totals.window()
            if totals is None:
                return _too_short(role, self._totals.seconds)
            time = step_time(totals.splits, totals.num_steps * len(totals.splits))
            first, is_uneven = totals.first_step, True
            steps = steps._replace(left_out=())
        left_out = words.left_out_text(steps.left_out)
        of_steps = Steps(role, first, steps.rows[-1].step, is_uneven, left_out)
        return breakdown(time, of_steps, found, self._samples.place(), stragglers)


def _time_of(steps: SelectedSteps) -> StepTime:
    """Time of the mean step of a mean rank."""
    splits = [cell.split for row in steps.rows for cell in row.cells]
    return step_time(splits, len(splits) * steps.num_steps / len(steps.rows))


def _bound(
    window: PipelineWindow,
    found: Sequence[PipelineCause],
    waited: Change | None,
    stragglers: Iterable[Verdict],
) -> Bottleneck:
    """The verdict on a job whose training and rollout run in parallel."""
    bound = _bound_of(window)
    if not found and bound in {None, "train"} and window.shares.known_ratio < _KNOWN_RATIO:
        return words.unmarked(window)
    visible = [cause for cause in found if not _is_hidden(cause, window, bound)]
    first = visible[0].bound_by if visible else bound
    if first is None:
        return replace(words.balanced(window), causes=tuple(found))
    verdict = words.bound_by(window, first, visible, waited, stragglers)
    others = [cause for cause in found if cause not in visible]
    return replace(verdict, causes=(*visible, *others))


def _bound_of(window: PipelineWindow) -> BoundBy | None:
    """What takes most of a step except training; "train" if rollout waits for training."""
    shares = {bound: window.shares.ratio(bound) for bound in window.shares.by_bound}
    others = {bound: share for bound, share in shares.items() if bound != "train"}
    most = max(others, key=lambda bound: others[bound], default=None)
    if most is not None and others[most] >= _BOUND_RATIO:
        return most
    waits = words.rollout_waits(window) >= _BOUND_RATIO or window.has_full_queue()
    return "train" if waits else None


def _is_hidden(cause: PipelineCause, window: PipelineWindow, bound: BoundBy | None) -> bool:
    """Whether another bound takes twice as much of a step as the bound of this cause."""
    if cause.bound_by not in _FELT_DIRECTLY or bound in {None, cause.bound_by}:
        return False
    assert bound is not None
    return window.shares.ratio(cause.bound_by) < window.shares.ratio(bound) / 2


def _slow_ranks(role: str, stragglers: Iterable[Verdict]) -> list[PipelineCause]:
    """Causes for the ranks that the straggler verdicts name."""
    return [
        PipelineCause(
            "peers",
            f"{role} rank {', '.join(verdict.ranks)}",
            verdict.summary,
            verdict.lost_seconds,
            kind="slow rank",
        )
        for verdict in stragglers
        if verdict.state == "found"
    ]


def _too_few(role: str, num_steps: int) -> Bottleneck:
    summary = sentences.TOO_FEW_STEPS(num_closed=num_steps, needed=LEAST_STEPS)
    return Bottleneck("insufficient evidence", summary, role)


def _too_short(role: str, seconds: float) -> Bottleneck:
    summary = sentences.TOO_SHORT(seconds=age_text(seconds), needed=age_text(LEAST_SECONDS))
    return Bottleneck("insufficient evidence", summary, role)

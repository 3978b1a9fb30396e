"""One verdict on a pipeline for its newest steps: what it waits for, and because of whom."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from dfx_agent.durations import seconds_text
from dfx_agent.facts.pipeline import PipelineFacts
from dfx_agent.judge.bottleneck import standstill, words
from dfx_agent.judge.bottleneck.causes import SAMPLES, causes, observe_steps, observe_told
from dfx_agent.judge.bottleneck.engine_causes import SlowEngines, StillEngines
from dfx_agent.judge.bottleneck.habit import Change
from dfx_agent.judge.bottleneck.step_shares import (
    aside_seconds,
    late_rank,
    step_shares,
    training_role,
)
from dfx_agent.judge.bottleneck.window import Habits, Moment, Window
from dfx_agent.judge.words import BUSY_HOST
from dfx_agent.snapshot import Bottleneck, BoundBy, PipelineCause, StepRow

NUM_STEPS = 3
_ENOUGH_STEPS = 5
_LEAST_SECONDS = 8.0
_LONG_SECONDS = 20.0
_MOST_STEPS = 16
_STOOD_STEPS = 5.0
_ASIDE_RATIO = 0.2
_KNOWN_RATIO = 0.5
# by those who train themselves, beside what else they do
_FELT_DIRECTLY = frozenset({"weight sync", "peers", "data"})
_BOUND_RATIO = 0.2
_GROWN_RATIO = 0.1


class BottleneckJudge:
    """Of one run; a window is judged anew when a step of the role that trains has closed."""

    def __init__(self) -> None:
        self._moments: deque[Moment] = deque(maxlen=_MOST_STEPS + 1)
        self._habits = Habits()
        self._still = StillEngines()
        self._slow = SlowEngines()
        self._seen: set[tuple[str, int]] = set()
        self._judged: Bottleneck | None = None
        self._step_seconds = 0.0

    def verdict(self, facts: PipelineFacts) -> Bottleneck | None:
        """None for a run that has no steps at all."""
        still = self._still.causes(facts.engines, facts.processes, facts.now_seconds)
        newest = {(row.role, row.step) for row in facts.steps}
        if newest != self._seen:
            self._seen = newest
            self._judge_newest(facts)
        hangs = [v for v in facts.verdicts if (v.kind, v.state) == ("hang", "found")]
        still += standstill.held_loops(facts.processes)
        judged = self._judged
        if judged is None:
            return None
        paused = self._still.all_still_seconds(facts.engines, facts.now_seconds)
        quiet = standstill.quiet(judged.role, facts, self._step_seconds, paused)
        if hangs or (still and quiet is not None):
            return standstill.stalled(judged.role, still, hangs, facts)
        if quiet is None and still:  # the others go on
            return words.beside(judged, still)
        return quiet or judged

    def _judge_newest(self, facts: PipelineFacts) -> None:
        role = training_role(facts.steps)
        rows = [row for row in facts.steps if row.role == role]
        if role is None or (self._moments and self._moments[-1].step == rows[-1].step):
            return
        self._moments.append(Moment.of(rows[-1].step, role, facts))
        self._judged = self._of_window(role, rows, facts)

    def _of_window(self, role: str, rows: Sequence[StepRow], facts: PipelineFacts) -> Bottleneck:
        newest, left_out = newest_rows(rows)
        if len(newest) < NUM_STEPS:
            observe_steps(self._habits, rows)
            return words.too_few(role, len(newest), NUM_STEPS)
        shares = step_shares(newest)
        moments = [m for m in self._moments if m.step >= newest[0].step - 1]
        is_alone = all(process.role == role for process in facts.processes)
        window = Window(role, newest, shares, moments, facts.told, is_alone, left_out)
        self._step_seconds = shares.step_seconds
        observe_steps(self._habits, rows)
        observe_told(self._habits, window)
        waited = self._habits[SAMPLES].change(_GROWN_RATIO * shares.step_seconds)
        slow = self._slow.causes(window)
        found = [*causes(window, self._habits, waited, slow), *_slow_ranks(window, facts)]
        return self._concluded(window, found, waited, _busy_host(role, facts))

    def _concluded(
        self,
        window: Window,
        found: Sequence[PipelineCause],
        waited: Change | None,
        busy_host: str,
    ) -> Bottleneck:
        bound = _bound_of(window)
        if not found and bound in {None, "train"} and window.shares.known_ratio < _KNOWN_RATIO:
            return words.unmarked(window)
        if not found and bound is None:
            return words.balanced(window)
        behind = [cause for cause in found if not _is_hidden(cause, window, bound)]
        told = behind[0].bound_by if behind else bound
        if told is None:
            return replace(words.balanced(window), causes=tuple(found))
        verdict = words.bound_by(window, told, behind, waited, busy_host)
        others = [cause for cause in found if cause not in behind]
        return replace(verdict, causes=(*behind, *others))


def newest_rows(rows: Sequence[StepRow]) -> tuple[list[StepRow], list[StepRow]]:
    """The newest five steps, and as many more as eight seconds need; three that are long.

    And those between them that say nothing of the pipeline: with a checkpoint or a validation, or
    longer than five times the median, which was told at its time.
    """
    rows = rows[-_MOST_STEPS:]
    usual = median(row.end_seconds - row.begin_seconds for row in rows)
    newest: list[StepRow] = []
    left_out: list[StepRow] = []
    total = 0.0
    for row in reversed(rows):
        is_many = len(newest) >= _ENOUGH_STEPS or total >= _LONG_SECONDS
        if len(newest) >= NUM_STEPS and total >= _LEAST_SECONDS and is_many:
            break
        seconds = row.end_seconds - row.begin_seconds
        is_usual = seconds <= _STOOD_STEPS * usual
        is_usual = is_usual and aside_seconds(row) <= _ASIDE_RATIO * seconds
        (newest if is_usual else left_out).insert(0, row)
        total += seconds if is_usual else 0.0
    return newest, left_out


def _bound_of(window: Window) -> BoundBy | None:
    """What takes most of a step beside training; training where nothing else takes much."""
    shares = {bound: window.shares.ratio(bound) for bound in window.shares.by_bound}
    others = {bound: share for bound, share in shares.items() if bound != "train"}
    most = max(others, key=lambda bound: others[bound], default=None)
    if window.is_alone and shares.get("train", 0.0) > max(others.values(), default=0.0):
        return "train"
    if most is not None and others[most] >= _BOUND_RATIO:
        return most
    waits = words.rollout_waits(window) >= _BOUND_RATIO or window.has_full_queue()
    return "train" if window.is_alone or waits else None


def _is_hidden(cause: PipelineCause, window: Window, bound: BoundBy | None) -> bool:
    """Whether something else takes twice as much of a step as what this one is felt in."""
    if cause.bound_by not in _FELT_DIRECTLY or bound in {None, cause.bound_by}:
        return False
    assert bound is not None
    return window.shares.ratio(cause.bound_by) < window.shares.ratio(bound) / 2


def _slow_ranks(window: Window, facts: PipelineFacts) -> list[PipelineCause]:
    """Whom the straggler verdict names, or else who comes last in every step, whyever."""
    role = window.role
    told = [
        PipelineCause(
            "peers",
            f"{role} rank {', '.join(verdict.ranks)}",
            verdict.summary,
            verdict.lost_seconds,
            kind="slow rank",
        )
        for verdict in facts.verdicts
        if (verdict.kind, verdict.role, verdict.state) == ("straggler", role, "found")
    ]
    late = late_rank(window.rows, _GROWN_RATIO * window.step_seconds)
    if told or late is None:
        return told
    sentence = (
        f"rank {late.rank} of {role} comes last in each of {len(window.rows)} steps: the others "
        f"wait {seconds_text(late.seconds)} for it"
    )
    sentence += f"; it is longer in {late.stage} than they are" if late.stage else ""
    component = f"{role} rank {late.rank}"
    return [PipelineCause("peers", component, sentence, late.seconds, kind="slow rank")]


def _busy_host(role: str, facts: PipelineFacts) -> str:
    """Why ranks of ``role`` cannot be told apart, where the host is the reason."""
    told = (v.summary for v in facts.verdicts if v.role == role and v.cause == BUSY_HOST)
    return next(told, "")

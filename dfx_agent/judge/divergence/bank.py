"""Detects whether the training of one run diverges.

The detector processes one completed step at a time. It reads no clock and does no input or output.
Its parameters come from an evaluation on 164 real runs: docs/concepts/training-health.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, ClassVar

from dfx_agent.catalogue.alerts.conditions import Condition
from dfx_agent.catalogue.alerts.declared.stability import DIVERGENCE
from dfx_agent.judge.divergence.aborted_share import AbortedShare, TimeoutShare
from dfx_agent.judge.divergence.around_onset import SavedAroundOnset
from dfx_agent.judge.divergence.broken_values import NonFinite
from dfx_agent.judge.divergence.cause_order import onset_of
from dfx_agent.judge.divergence.collapse import (
    MOVED_BY_LEARNING,
    REWARD,
    REWARD_FALL_STEPS,
    UNBELIEVABLE,
    SavedStreak,
    believed,
)
from dfx_agent.judge.divergence.curriculum import MOVED_BY_PROMPTS, Curriculum
from dfx_agent.judge.divergence.explanations import Explanations
from dfx_agent.judge.divergence.onset import UPDATE_KLS, History, find_onset, update_before
from dfx_agent.judge.divergence.reward_trend import RewardTrend, SavedRewardTrend
from dfx_agent.judge.divergence.run_collapses import RunCollapses, SavedCollapses
from dfx_agent.judge.divergence.saved_state import FORMAT_2, SavedState
from dfx_agent.judge.divergence.score_spread import SavedSpread, ScoreSpread
from dfx_agent.judge.divergence.signal import SavedSignal, Signal
from dfx_agent.judge.divergence.state_rows import RowMaker, StateRows
from dfx_agent.judge.divergence.symptoms import (
    SIGNALS,
    Calm,
    Direction,
    SavedSymptom,
    StepSignals,
    Symptom,
    symptoms_by_family,
)
from dfx_agent.judge.divergence.vote import Vote
from dfx_agent.snapshot import (
    OnsetRange,
    SignalRow,
    SignalState,
)

LATCH_STEPS = 128
# minimum duration of an alert, if time is known: steps of 2 ms would end it before it is sent
LATCH_SECONDS = 120.0
# baselines do not learn while an alert fires; after this many steps a lasting change is normal
HOLD_STEPS = 32


@dataclass(frozen=True)
class SavedBank(SavedState):
    """Saved state of a ``SignalBank``. Format 2 may lack fields that have a default."""

    EARLIER: ClassVar = {"held": "num_held", "beside": "explanations"}

    row: int
    step: int | None
    signals: dict[str, Annotated[SavedSignal, FORMAT_2]]
    symptoms: tuple[Annotated[SavedSymptom, FORMAT_2], ...]
    """In the order of ``symptoms_by_family``."""
    calm: dict[str, int]
    """Number of calm rows by "family direction"."""
    reward: Annotated[SavedRewardTrend, FORMAT_2]
    lowest: float | None
    dead: Annotated[SavedStreak, FORMAT_2]
    num_held: int
    nonfinite: dict[str, tuple[int, ...]]
    """Rows with NaN or Inf, by place."""
    spread: Annotated[SavedSpread, FORMAT_2]
    latch: tuple[int, int] | None
    """(row, step) at which the alert began."""
    explanations: dict[str, Annotated[SavedAroundOnset, FORMAT_2]] = field(default_factory=dict)
    aborted: tuple[float, ...] = ()
    curriculum: tuple[float, ...] = ()
    timed_out: tuple[float, ...] = ()
    latch_seconds: float | None = None
    collapses: SavedCollapses = field(default_factory=SavedCollapses)
    onset: OnsetRange | None = None


class SignalBank:
    """The divergence detector of one run. Its memory is bounded, and ``observe`` never raises.

    While the condition ``critical`` (the alert) holds, the baselines are frozen. Otherwise they
    would learn the collapsed state, and the alert would end by itself.
    """

    def __init__(self, critical: Condition = DIVERGENCE.condition) -> None:
        self._vote = Vote(critical)
        self._row = -1
        self._step: int | None = None
        self._seconds: float | None = None
        self._latch_seconds: float | None = None
        self._signals = [Signal(spec) for spec in SIGNALS]
        self._symptoms = symptoms_by_family()
        self._signals_by_family = {key: self._members(*key) for key in self._symptoms}
        # each signal with the symptoms that it can activate, and their sign
        self._scored = [(signal, self._symptoms_of(signal)) for signal in self._signals]
        self._calm = {key: Calm(symptom.direction) for key, symptom in self._symptoms.items()}
        self._reward = RewardTrend()
        self._explanations = Explanations(self._reward)
        for signal in self._signals:
            if signal.spec.name in MOVED_BY_LEARNING:
                signal.is_explained = partial(self._explanations.explains, signal.spec.name)
        self._collapsed = RunCollapses()
        for signal in self._signals:
            signal.collapses = self._collapsed
        self._num_held, self._is_holding = 0, True  # baselines may be frozen
        self._nonfinite = NonFinite()
        self._spread = ScoreSpread()
        self._aborted, self._timed_out = AbortedShare(), TimeoutShare()
        self._curriculum = Curriculum()
        self._latch: tuple[int, int] | None = None
        self._onset: OnsetRange | None = None
        self._cached_state: SignalState | None = None
        self._row_maker = RowMaker(self._signals, self._symptoms.values(), self._collapsed)
        # rows of the present step; None if they must be computed again
        self._rows: StateRows | None = None

    def observe(
        self, step: int, values: Mapping[str, float], seconds: float | None = None
    ) -> SignalState:
        """Process one completed step. Returns the state after it.

        ``values``: value by signal (``SIGNALS``, ABORTED, TIMED_OUT, SCORE_MAX, SCORE_MIN).
        ``seconds``: Unix time of the step, None if unknown.
        The same step again changes nothing. A smaller step is a restart of the job: this step and
        later ones are dropped, and the first step after a restart is not scored.
        """
        self.advance(step, values, seconds)
        return self.state()

    def advance(self, step: int, values: Mapping[str, float], seconds: float | None = None) -> None:
        """``observe`` without building the state, for callers that do not read it at each step."""
        if step == self._step:
            return
        is_restart = self._step is not None and step < self._step
        if is_restart:
            self._rewind(step)
        self._row += 1
        self._rows, self._step, self._seconds = None, step, seconds
        self._nonfinite.observe(self._row, values)
        self._spread.observe(values)
        self._aborted.observe(values)
        self._timed_out.observe(values)
        if self._curriculum.has_risen(values) and self._latch is None:
            self._restart_learning(MOVED_BY_PROMPTS)
        if isinstance(values, StepSignals) and values.changed:
            self._restart_learning(values.changed)
        self._score(step, {} if is_restart else values)
        if not self._is_idle():
            self._update_latch(step)
            self._hold_learning()
        self._cached_state = None

    @property
    def latest_state(self) -> SignalState | None:
        """The state after the latest step; None before the first step."""
        return None if self._step is None else self.state()

    def state(self) -> SignalState:
        """The state after the latest step. Raises ValueError before the first step."""
        if self._cached_state is None:
            self._cached_state = self._state(tuple(s.as_row() for s in self._signals if s.is_known))
        return self._cached_state

    def state_of_run(self) -> SignalState:
        """The state without the rows of single signals."""
        return self._state(())

    @property
    def reported_signals(self) -> Sequence[Signal]:
        """Signals that were reported at least once."""
        return self._row_maker.reported

    def reset(self) -> None:
        """Learn the present state as normal, because an operator asked for it."""
        self._relearn()
        self._collapsed.clear()
        self._rows = None
        for signal in self._signals:
            signal.drift.clear()
        self._cached_state = None

    def save(self) -> SavedBank:
        """Returns what ``resume`` needs after a restart of the agent."""
        return SavedBank(
            row=self._row,
            step=self._step,
            signals={
                signal.spec.name: signal.save() for signal in self._signals if signal.is_known
            },
            symptoms=tuple(symptom.save() for symptom in self._symptoms.values()),
            calm={" ".join(key): calm.num_rows for key, calm in self._calm.items()},
            reward=self._reward.save(),
            lowest=self._collapsed.lowest.lowest,
            dead=self._collapsed.dead.save(),
            num_held=self._num_held,
            nonfinite=self._nonfinite.save(),
            spread=self._spread.save(),
            latch=self._latch,
            explanations=self._explanations.save(),
            aborted=self._aborted.save(),
            curriculum=self._curriculum.save(),
            timed_out=self._timed_out.save(),
            latch_seconds=self._latch_seconds,
            collapses=self._collapsed.save(),
            onset=self._onset,
        )

    def resume(self, saved: SavedBank) -> None:
        """Continue from a saved state. Raises ValueError if the detector had other families."""
        self._row, self._step = saved.row, saved.step
        for signal in self._signals:
            if signal.spec.name in saved.signals:
                signal.resume(saved.signals[signal.spec.name])
        # an earlier agent did not know the last symptom
        symptoms = [*self._symptoms.values()][: len(saved.symptoms)]
        for symptom, saved_symptom in zip(symptoms, saved.symptoms, strict=True):
            symptom.resume(saved_symptom)
        for key, calm in self._calm.items():  # format 2 may have one value per family
            calm.num_rows = saved.calm.get(" ".join(key), saved.calm.get(key[0], 0))
        self._reward.resume(saved.reward)
        self._explanations.resume(saved.explanations)
        self._collapsed.lowest.lowest = saved.lowest
        self._collapsed.dead.resume(saved.dead)
        self._collapsed.resume(saved.collapses)
        self._num_held, self._is_holding = saved.num_held, True
        self._nonfinite.resume(saved.nonfinite)
        self._spread.resume(saved.spread)
        self._aborted.resume(saved.aborted)
        self._curriculum.resume(saved.curriculum)
        self._timed_out.resume(saved.timed_out)
        self._latch, self._latch_seconds = saved.latch, saved.latch_seconds
        self._onset, self._rows, self._cached_state = saved.onset, None, None
        self._hold_streaks(is_held=self._is_young())

    def _score(self, step: int, values: Mapping[str, float]) -> None:
        self._explanations.values = values
        self._explanations.is_paged = self._latch is not None
        farthest: dict[Symptom, float] = {}
        for signal, shown in self._scored:
            value = values.get(signal.signal)
            if value is None and signal.value is None and not signal.is_broken:
                continue
            finite, is_broken = value, False
            if value is not None and not abs(value) < UNBELIEVABLE:
                finite, is_broken = believed(signal.spec, value), not math.isfinite(value)
            alarms = signal.observe(step, finite, is_broken=is_broken)
            if alarms:
                self._raise_alarms(signal, alarms)
            if signal.signal == REWARD:
                self._follow_reward(step, finite, signal)
            for symptom, sign in shown if signal.z is not None else ():
                distance = signal.distance(sign)
                farthest[symptom] = max(distance, farthest.get(symptom, distance))
        if self._reward.fall_step is not None:
            self._symptoms["reward", "down"].alarm(self._row, self._reward.fall_step)
        is_longer = self._symptoms["length", "up"].is_active(self._row)
        if self._reward.jump_step is not None and is_longer:
            # the reward pays for length: no family of its own would show that
            self._symptoms["reward", "up"].alarm(self._row, self._reward.jump_step)
        for symptom, distance in farthest.items():
            symptom.observe(self._row, distance)
        self._collapsed.observe(step, values)

    def _raise_alarms(self, signal: Signal, alarms: Mapping[Direction, int]) -> None:
        for direction, began in alarms.items():
            key, own = (signal.spec.symptom, direction), None
            if self._onset is not None and not self._symptoms[key].is_active(self._row):
                # a signal that moves after the alert began cannot be its onset
                own = find_onset(self._histories(*key), from_step=self._onset.low_step)
            self._symptoms[key].alarm(self._row, began if own is None else own.step)

    def _follow_reward(self, step: int, value: float | None, signal: Signal) -> None:
        self._reward.observe(step, value, signal.plain_z, signal.baseline.smallest_step)
        if value is None:
            return
        fall, is_down = self._collapsed.reward_fall, self._reward.is_down
        is_last_missing = fall.num_steps == REWARD_FALL_STEPS - 1
        if is_down and is_last_missing and not self._reward.is_far_below_held:
            return  # the best level was luck so far: wait with the row that would page
        fall.observe(step, holds=is_down)

    def _is_idle(self) -> bool:
        """Whether no baseline is frozen, and nothing fires that would freeze one."""
        if self._latch is not None or self._num_held or self._is_holding:
            return False
        vote = self._judge()
        return not (vote.is_critical or vote.is_unstable or self._reward.fall_step is not None)

    def _hold_learning(self) -> None:
        """Freeze the baselines while anything fires, for at most ``HOLD_STEPS``."""
        if self._latch is not None:
            self._num_held = 0
            return
        is_firing = self._judge().is_unstable or self._reward.fall_step is not None
        self._num_held = self._num_held + 1 if is_firing else 0
        is_holding = 0 < self._num_held <= HOLD_STEPS
        if is_holding or self._is_holding:
            for signal in self._signals:
                if is_holding:
                    signal.baseline.freeze()
                else:
                    signal.baseline.thaw()
        self._is_holding = is_holding

    def _update_latch(self, step: int) -> None:
        if self._latch is None:
            if self._judge().is_critical:
                self._freeze(step)
            return
        if self._is_young():
            for symptom in self._symptoms.values():
                symptom.hold(self._row)
            return
        self._hold_streaks(is_held=False)
        self._release_calm_families()
        if not self._judge().is_critical:
            self._thaw()
        elif self._row - self._latch[0] >= LATCH_STEPS:
            self._relearn()

    def _is_young(self) -> bool:
        """Whether the alert began so recently that it may not have been sent."""
        if self._latch_seconds is None or self._seconds is None:
            return False
        return 0 <= self._seconds - self._latch_seconds < LATCH_SECONDS

    def _hold_streaks(self, *, is_held: bool) -> None:
        for streak in (*self._collapsed.streaks, *(signal.streak for signal in self._signals)):
            streak.is_held = is_held

    def _freeze(self, step: int) -> None:
        self._latch, self._latch_seconds = (self._row, step), self._seconds
        self._hold_streaks(is_held=self._is_young())
        for signal in self._signals:
            signal.baseline.freeze()
        for calm in self._calm.values():
            calm.num_rows = 0
        for symptom in self._symptoms.values():
            symptom.hold(self._row)
        self._find_onset()
        self._rows = None
        signals = tuple(signal.as_row() for signal in self._signals if signal.is_known)
        self._onset = onset_of(self._state(signals))

    def _find_onset(self) -> None:
        """Estimate the onset of the run from all moved signals, then that of each family."""
        moved = {
            key: symptom for key, symptom in self._symptoms.items() if symptom.is_active(self._row)
        }
        found = find_onset([history for key in moved for history in self._histories(*key)])
        self._onset = found
        if found is None:
            return
        jump = moved.pop(("reward", "up"), None)
        for key, symptom in moved.items():
            own = find_onset(self._histories(*key), from_step=found.low_step)
            symptom.onset_step = found.step if own is None else own.step
        self._date_before(jump, self._reward.jump_step)
        histories = [s.history for s in self._signals if s.spec.name in UPDATE_KLS]
        self._date_before(self._symptoms["divergence", "up"], update_before(found.step, histories))

    def _date_before(self, symptom: Symptom | None, step: int | None) -> None:
        """Move the onset of the run back to the step at which its cause moved, if it is earlier."""
        if symptom is None or step is None or self._onset is None or step >= self._onset.step:
            return
        symptom.alarm(self._row, step)
        symptom.onset_step = step
        symptom.hold(self._row)
        self._onset = OnsetRange(step, step, step, symptom.name)

    def _symptoms_of(self, signal: Signal) -> list[tuple[Symptom, float]]:
        return [
            (symptom, 1.0 if direction == "up" else -1.0)
            for (family, direction), symptom in self._symptoms.items()
            if family == signal.spec.symptom and direction in signal.spec.directions
        ]

    def _members(self, family: str, direction: Direction) -> tuple[float, list[Signal]]:
        """The sign of this direction, and the signals of the family."""
        of_family = [signal for signal in self._signals if signal.spec.symptom == family]
        sign = 1.0 if direction == "up" else -1.0
        return sign, [signal for signal in of_family if direction in signal.spec.directions]

    def _histories(self, family: str, direction: Direction) -> list[History]:
        sign, signals = self._signals_by_family[family, direction]
        return [[(step, sign * z) for step, z in signal.history] for signal in signals]

    def _release_calm_families(self) -> None:
        self._rows = None
        for symptom in self._symptoms.values():
            symptom.hold(self._row)
        for (family, direction), calm in self._calm.items():
            zs = (s.z for s in self._signals if s.spec.symptom == family)
            calm.observe(z for z in zs if z is not None)
            if calm.is_calm:
                self._symptoms[family, direction].release()

    def _thaw(self) -> None:
        self._latch = self._latch_seconds = self._onset = self._rows = None
        self._hold_streaks(is_held=False)
        for signal in self._signals:
            signal.baseline.thaw()
        for symptom in self._symptoms.values():
            symptom.release()

    def _relearn(self) -> None:
        """Make the present state the new baseline. A dead run stays dead, with its onset."""
        self._thaw()
        for signal in self._signals:
            signal.clear()
        for symptom in self._symptoms.values():
            symptom.clear()
        self._rows = None
        self._reward.clear()
        self._collapsed.relearn()
        self._explanations.clear()
        self._num_held = 0

    def _restart_learning(self, names: frozenset[str]) -> None:
        for signal in self._signals:
            if signal.spec.name in names:
                signal.clear()
                signal.drift.clear()
        if "reward" in names:
            self._reward.clear()
            self._collapsed.lowest.lowest = None

    def _rewind(self, step: int) -> None:
        """Drop the steps that the job repeats; if no step is left, it is a new attempt."""
        self._num_held = 0
        if self._latch is not None and self._latch[1] >= step:
            self._thaw()
        for signal in self._signals:
            signal.rewind(step)
        for symptom in self._symptoms.values():
            symptom.rewind(step)
        self._reward.rewind(step)
        self._explanations.clear()
        self._collapsed.rewind(step)
        if not any(signal.baseline.num_rows for signal in self._signals):
            self._begin_attempt()

    def _begin_attempt(self) -> None:
        """The run starts from its first step again, or another run begins in the same log."""
        self._relearn()
        self._collapsed.clear()
        self._collapsed.lowest.lowest = None
        for signal in self._signals:
            signal.drift.clear()

    def _judge(self) -> Vote:
        self._vote.observe(*self._rows_now(), improving=self._is_improving())
        return self._vote

    def _rows_now(self) -> StateRows:
        if self._rows is None:
            self._rows = self._row_maker.rows(self._row, self._reward.fell_step)
        return self._rows

    def _is_improving(self) -> bool | None:
        if self._is_young() and self._reward.is_improving(is_latched=True) is not None:
            return False
        return self._reward.is_improving(is_latched=self._latch is not None)

    def _state(self, signals: tuple[SignalRow, ...]) -> SignalState:
        if self._step is None:
            raise ValueError("no step was observed")
        symptoms, collapses = self._rows_now()
        return SignalState(
            row=self._row,
            step=self._step,
            signals=signals,
            symptoms=symptoms,
            is_reward_improving=self._is_improving(),
            is_latched=self._latch is not None,
            latched_step=None if self._latch is None else self._latch[1],
            num_nonfinite_steps=self._nonfinite.num_steps(self._row),
            num_identical_score_steps=self._spread.num_identical,
            had_score_signal=self._spread.had_signal,
            aborted_recent_median=self._aborted.recent_median,
            aborted_rise=self._aborted.rise,
            timeout_rise=self._timed_out.rise,
            collapses=collapses,
            onset=self._onset,
        )

"""Training health of one run, counted in steps: signals, symptoms, latch, dead and broken values.

Pure: no clock and no input or output; time passes when a step is observed. Parameters come from an
evaluation on 164 real runs; what they are for: docs/concepts/training-health.md.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Annotated, ClassVar, Literal

from dfx_agent.judge.divergence.aborted_share import AbortedShare
from dfx_agent.judge.divergence.around_onset import AroundOnset, KeptAroundOnset
from dfx_agent.judge.divergence.baseline import GAP_STEPS, WARM_STEPS, WINDOW_STEPS
from dfx_agent.judge.divergence.collapse import (
    ALL_TRUNCATED,
    DEAD_STEPS,
    GRAD_NORM,
    MOVED_BY_LEARNING,
    KeptStreak,
    LowestReward,
    Streak,
)
from dfx_agent.judge.divergence.kept import FORMAT_2, Kept
from dfx_agent.judge.divergence.reward_trend import KeptRewardTrend, RewardTrend
from dfx_agent.judge.divergence.score_spread import KeptSpread, ScoreSpread
from dfx_agent.judge.divergence.signal import (
    CUSUM_ALARM,
    CUSUM_SLACK,
    CUSUM_Z_CAP,
    TRUNCATION,
    KeptSignal,
    Signal,
)
from dfx_agent.judge.divergence.symptoms import (
    ACTIVE_STEPS,
    CALM_STEPS,
    SIGNALS,
    Calm,
    KeptSymptom,
    SignalSpec,
    Symptom,
)
from dfx_agent.judge.divergence.vote import Vote
from dfx_agent.rules.conditions import Condition
from dfx_agent.rules.declared.stability import DIVERGENCE
from dfx_agent.snapshot import (
    CollapseRow,
    DetectorParameters,
    SignalParameters,
    SignalState,
    SymptomRow,
)

LATCH_STEPS = 128
# and so long at least where time is known: the page of a job with steps of 2 ms has to be told
LATCH_SECONDS = 120.0
# while anything fires no baseline learns, but a change that stays is normal one day
HOLD_STEPS = 32
NONFINITE_STEPS = 5

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
        for spec in SIGNALS
    ),
)

# scored, such a number would overflow sums and exponents; no signal of a job comes near
_UNBELIEVABLE = 1e100

_PLACES = {spec.name: spec.where for spec in SIGNALS}


class StepSignals(dict[str, float]):
    """Values of one step by signal; ``changed``: those that another metric speaks for from here.

    Two metrics differ in level and spread: what one taught says nothing of the other.
    """

    changed: frozenset[str] = frozenset()


class NonFinite:
    """Rows of the newest 5 with NaN or Inf, by where it was."""

    def __init__(self) -> None:
        self._rows: dict[str, deque[int]] = {}

    def observe(self, row: int, values: Mapping[str, float]) -> None:
        """A place is known from its first value, so that its count exists before the first NaN."""
        for name, value in values.items():
            if name not in _PLACES:
                continue
            rows = self._rows.setdefault(_PLACES[name], deque(maxlen=NONFINITE_STEPS))
            if not math.isfinite(value) and row not in rows:
                rows.append(row)

    def num_steps(self, row: int) -> dict[str, int]:
        newest = row - NONFINITE_STEPS
        return {where: sum(r > newest for r in rows) for where, rows in self._rows.items()}

    def kept(self) -> dict[str, tuple[int, ...]]:
        return {where: tuple(rows) for where, rows in self._rows.items()}

    def resume(self, kept: Mapping[str, Iterable[int]]) -> None:
        self._rows = {where: deque(rows, NONFINITE_STEPS) for where, rows in kept.items()}


@dataclass(frozen=True)
class KeptBank(Kept):
    """``symptoms`` in the order of ``_families``; ``calm``: rows by "family direction".

    ``nonfinite``: rows by place. ``latch``: row and step. What has a default may lack in format 2.
    """

    EARLIER: ClassVar = {"held": "num_held"}

    row: int
    step: int | None
    signals: dict[str, KeptSignal]
    symptoms: tuple[Annotated[KeptSymptom, FORMAT_2], ...]
    calm: dict[str, int]
    reward: Annotated[KeptRewardTrend, FORMAT_2]
    lowest: float | None
    dead: Annotated[KeptStreak, FORMAT_2]
    num_held: int
    nonfinite: dict[str, tuple[int, ...]]
    spread: Annotated[KeptSpread, FORMAT_2]
    latch: tuple[int, int] | None
    beside: dict[str, Annotated[KeptAroundOnset, FORMAT_2]] = field(default_factory=dict)
    aborted: tuple[float, ...] = ()
    latch_seconds: float | None = None


class SignalBank:
    """Everything about one run; memory is bounded, ``observe`` never raises.

    ``critical`` freezes the baselines while it holds, else they would learn the dead state and the
    page would clear itself.
    """

    def __init__(self, critical: Condition = DIVERGENCE.condition) -> None:
        self._vote = Vote(critical)
        self._row = -1
        self._step: int | None = None
        self._seconds: float | None = None
        self._latch_seconds: float | None = None
        self._signals = [Signal(spec) for spec in SIGNALS]
        self._symptoms = _families()
        self._calm = {key: Calm(symptom.direction) for key, symptom in self._symptoms.items()}
        self._reward = RewardTrend()
        # of what tells why the gradient norm is far off, and their newest values
        self._beside = {name: AroundOnset() for name in ("loss", "reward")}
        self._reported: Mapping[str, float] = {}
        for signal in self._signals:
            if signal.spec.name in MOVED_BY_LEARNING:
                signal.is_explained = partial(self._is_learning, signal.spec.name)
        self._lowest = LowestReward()
        self._dead = Streak(DEAD_STEPS)
        self._num_held = 0
        self._nonfinite = NonFinite()
        self._spread = ScoreSpread()
        self._aborted = AbortedShare()
        self._latch: tuple[int, int] | None = None
        self._newest: SignalState | None = None

    def observe(
        self, step: int, values: Mapping[str, float], seconds: float | None = None
    ) -> SignalState:
        """Take one completed step: signal -> value (those of ``SIGNALS``, LOSS, SCORE_*).

        ``seconds``: when it was (Unix time), None if that is not known.
        A step that was the newest already changes nothing. A smaller step is a restart: what came
        at or after it is forgotten, and this first step after it is not scored.
        """
        if self._newest is not None and step == self._step:
            return self._newest
        is_restart = self._step is not None and step < self._step
        if is_restart:
            self._rewind(step)
        self._row += 1
        self._step, self._seconds = step, seconds
        self._nonfinite.observe(self._row, values)
        self._spread.observe(values)
        self._aborted.observe(values)
        if isinstance(values, StepSignals):
            self._learn_anew(values.changed)
        self._score(step, {} if is_restart else values)
        self._update_latch(step)
        self._hold_learning()
        self._newest = self._state(step)
        return self._newest

    @property
    def newest(self) -> SignalState | None:
        """As of the newest step; None before the first."""
        return self._newest

    def reset(self) -> None:
        """The operator says that the present state is normal: learn it from here."""
        self._relearn()
        self._dead.clear()
        for signal in self._signals:
            signal.drift.clear()
        if self._step is not None:
            self._newest = self._state(self._step)

    def kept(self) -> KeptBank:
        """For ``resume`` after the agent was started again."""
        return KeptBank(
            row=self._row,
            step=self._step,
            signals={s.spec.name: s.kept() for s in self._signals if s.is_known},
            symptoms=tuple(symptom.kept() for symptom in self._symptoms.values()),
            calm={" ".join(key): calm.num_rows for key, calm in self._calm.items()},
            reward=self._reward.kept(),
            lowest=self._lowest.lowest,
            dead=self._dead.kept(),
            num_held=self._num_held,
            nonfinite=self._nonfinite.kept(),
            spread=self._spread.kept(),
            latch=self._latch,
            beside={name: around.kept() for name, around in self._beside.items()},
            aborted=self._aborted.kept(),
            latch_seconds=self._latch_seconds,
        )

    def resume(self, kept: KeptBank) -> None:
        """ValueError if it is of a detector with other families."""
        self._row, self._step = kept.row, kept.step
        for signal in self._signals:
            if signal.spec.name in kept.signals:
                signal.resume(kept.signals[signal.spec.name])
        for symptom, known in zip(self._symptoms.values(), kept.symptoms, strict=True):
            symptom.resume(known)
        for key, calm in self._calm.items():  # format 2 may have one of a family
            calm.num_rows = kept.calm.get(" ".join(key), kept.calm.get(key[0], 0))
        self._reward.resume(kept.reward)
        for name, around in self._beside.items():
            around.resume(kept.beside.get(name, KeptAroundOnset()))
        self._lowest.lowest = kept.lowest
        self._dead.resume(kept.dead)
        self._num_held = kept.num_held
        self._nonfinite.resume(kept.nonfinite)
        self._spread.resume(kept.spread)
        self._aborted.resume(kept.aborted)
        self._latch, self._latch_seconds = kept.latch, kept.latch_seconds
        self._hold_streaks(is_held=self._is_young())
        self._newest = None if self._step is None else self._state(self._step)

    def _score(self, step: int, values: Mapping[str, float]) -> None:
        self._reported = values
        for signal in self._signals:
            value = values.get(signal.spec.name)
            finite = _believed(signal.spec, value)
            is_broken = value is not None and not math.isfinite(value)
            for direction, onset in signal.observe(step, finite, is_broken=is_broken).items():
                self._symptoms[signal.spec.symptom, direction].alarm(self._row, onset)
            if signal.spec.name == "reward":
                smallest = signal.baseline.smallest_step
                self._reward.observe(step, finite, signal.plain_z, smallest)
        if self._reward.fall_step is not None:
            self._symptoms["reward", "down"].alarm(self._row, self._reward.fall_step)
        self._watch_death(step, values)

    def _is_learning(self, name: str, is_far: bool) -> bool:  # noqa: FBT001
        """Why it may be far off in a healthy run; a page that is on ends by its own rules."""
        is_improving = self._latch is None and self._reward.is_improving(is_latched=False)
        if name != GRAD_NORM:
            return bool(is_improving)
        for beside, around in self._beside.items():
            value = self._reported.get(beside, math.nan)
            around.observe(value if abs(value) < _UNBELIEVABLE else None, is_far=is_far)
        loss, reward = self._beside["loss"], self._beside["reward"]
        return bool(is_improving) or reward.is_best or (loss.is_known and not loss.is_up)

    def _watch_death(self, step: int, values: Mapping[str, float]) -> None:
        """Of rows that report both; NaN compares as false."""
        reward, truncation = values.get("reward"), values.get("truncation")
        if reward is None or truncation is None or not abs(reward) < _UNBELIEVABLE:
            return
        is_lowest = self._lowest.is_at(reward)
        self._dead.observe(step, holds=is_lowest and truncation > ALL_TRUNCATED)

    def _hold_learning(self) -> None:
        """Baselines do not learn from rows in which anything fires, for some time."""
        if self._latch is not None:
            self._num_held = 0
            return
        is_firing = self._judge().is_unstable or self._reward.fall_step is not None
        self._num_held = self._num_held + 1 if is_firing else 0
        for signal in self._signals:
            if 0 < self._num_held <= HOLD_STEPS:
                signal.baseline.freeze()
            else:
                signal.baseline.thaw()

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
        """The page is on for too short a time to have been told."""
        if self._latch_seconds is None or self._seconds is None:
            return False
        return 0 <= self._seconds - self._latch_seconds < LATCH_SECONDS

    def _hold_streaks(self, *, is_held: bool) -> None:
        for streak in (self._dead, *(signal.streak for signal in self._signals)):
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

    def _release_calm_families(self) -> None:
        for symptom in self._symptoms.values():
            symptom.hold(self._row)
        for (family, direction), calm in self._calm.items():
            zs = (s.z for s in self._signals if s.spec.symptom == family)
            calm.observe(z for z in zs if z is not None)
            if calm.is_calm:
                self._symptoms[family, direction].release()

    def _thaw(self) -> None:
        self._latch = self._latch_seconds = None
        self._hold_streaks(is_held=False)
        for signal in self._signals:
            signal.baseline.thaw()
        for symptom in self._symptoms.values():
            symptom.release()

    def _relearn(self) -> None:
        """The present state is the new baseline; who is dead stays dead since when it was."""
        self._thaw()
        for signal in self._signals:
            signal.clear()
        for symptom in self._symptoms.values():
            symptom.clear()
        self._reward.clear()
        for around in self._beside.values():
            around.clear()
        self._num_held = 0

    def _learn_anew(self, names: frozenset[str]) -> None:
        for signal in self._signals:
            if signal.spec.name in names:
                signal.clear()
                signal.drift.clear()
        if "reward" in names:
            self._reward.clear()
            self._lowest.lowest = None

    def _rewind(self, step: int) -> None:
        for signal in self._signals:
            signal.rewind(step)
        for symptom in self._symptoms.values():
            symptom.rewind(step)
        self._reward.rewind(step)
        for around in self._beside.values():
            around.clear()
        self._dead.rewind(step)

    def _judge(self) -> Vote:
        self._vote.observe(self._symptom_rows(), self._collapses(), improving=self._is_improving())
        return self._vote

    def _is_improving(self) -> bool | None:
        if self._is_young() and self._reward.is_improving(is_latched=True) is not None:
            return False
        return self._reward.is_improving(is_latched=self._latch is not None)

    def _collapses(self) -> tuple[CollapseRow, ...]:
        rows = []
        for signal in self._signals:
            if signal.is_known and signal.spec.name == TRUNCATION:
                rows.append(_collapse("truncation", "", signal.streak))
            elif signal.is_known and not signal.spec.is_raw:
                rows.append(_collapse("blow_up", signal.spec.name, signal.streak))
        if self._lowest.lowest is not None:
            rows.append(_collapse("dead", "", self._dead))
        return tuple(rows)

    def _symptom_rows(self) -> tuple[SymptomRow, ...]:
        """Families of which a signal is known: an unknown one has no series."""
        known = {signal.spec.symptom for signal in self._signals if signal.is_known}
        rows = (s.as_row(self._row) for s in self._symptoms.values() if s.name in known)
        return tuple(rows)

    def _state(self, step: int) -> SignalState:
        return SignalState(
            row=self._row,
            step=step,
            signals=tuple(signal.as_row() for signal in self._signals if signal.is_known),
            symptoms=self._symptom_rows(),
            is_reward_improving=self._is_improving(),
            is_latched=self._latch is not None,
            latched_step=None if self._latch is None else self._latch[1],
            num_nonfinite_steps=self._nonfinite.num_steps(self._row),
            num_identical_score_steps=self._spread.num_identical,
            had_score_signal=self._spread.had_signal,
            aborted_recent_median=self._aborted.recent_median,
            collapses=self._collapses(),
        )


def _believed(spec: SignalSpec, value: float | None) -> float | None:
    """None for what is not scored; a finite number beyond belief has blown up all the same."""
    if value is None or not math.isfinite(value):
        return None
    if abs(value) < _UNBELIEVABLE:
        return value
    return None if spec.is_raw else math.copysign(_UNBELIEVABLE, value)


# rows that stay the same are the same object: made once, and equal without a look into them
_collapse_row = lru_cache(maxsize=1024)(CollapseRow)


def _collapse(
    kind: Literal["blow_up", "truncation", "dead"], signal: str, streak: Streak
) -> CollapseRow:
    return _collapse_row(kind, signal, streak.num_steps, streak.onset_step, streak.last_step)


def _families() -> dict[tuple[str, str], Symptom]:
    found: dict[tuple[str, str], Symptom] = {}
    for spec in SIGNALS:
        for direction in spec.directions:
            found.setdefault((spec.symptom, direction), Symptom(spec.symptom, direction))
    return found

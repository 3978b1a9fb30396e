"""Builds the rows of a SignalState: symptoms and collapses.

Most steps change neither. Then the rows are the same objects as in the step before, so that a
reader can compare them by identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from dfx_agent.judge.divergence.collapse import ENTROPY, REWARD, Streak
from dfx_agent.judge.divergence.run_collapses import RunCollapses
from dfx_agent.judge.divergence.signal import TRUNCATION, Signal
from dfx_agent.judge.divergence.symptoms import Symptom
from dfx_agent.snapshot import CollapseKind, CollapseRow, SymptomRow

StateRows = tuple[tuple[SymptomRow, ...], tuple[CollapseRow, ...]]


class RowMaker:
    """Builds the rows of one run. Signals that were never reported have no rows."""

    def __init__(
        self, signals: Sequence[Signal], symptoms: Iterable[Symptom], run: RunCollapses
    ) -> None:
        self._signals, self._symptoms, self._run = signals, tuple(symptoms), run
        self.reported: list[Signal] = []
        self._unreported = list(signals)
        self._reported_symptoms: list[Symptom] = []
        self._last_rows: StateRows = (), ()
        # rows while nothing is collapsed, with the key that says which collapses have rows
        self._quiet: tuple[tuple[int, int, bool], tuple[CollapseRow, ...]] | None = None

    def rows(self, row: int, fell_step: int | None) -> StateRows:
        """Symptom rows and collapse rows.

        ``fell_step``: step since which the reward is below its best.
        """
        unreported = [signal for signal in self._unreported if not signal.is_known]
        if len(unreported) != len(self._unreported):
            self._unreported = unreported
            self.reported = [signal for signal in self._signals if signal.is_known]
            families = {signal.spec.symptom for signal in self.reported}
            self._reported_symptoms = [
                symptom for symptom in self._symptoms if symptom.name in families
            ]
        symptoms = tuple([symptom.as_row(row) for symptom in self._reported_symptoms])
        before = self._last_rows[0]
        self._last_rows = before if symptoms == before else symptoms, self._collapses(fell_step)
        return self._last_rows

    def _collapses(self, fell_step: int | None) -> tuple[CollapseRow, ...]:
        run = self._run
        if run.is_any or any(signal.streak.num_steps for signal in self.reported):
            return tuple(self._build_collapses(fell_step))
        key = len(self.reported), len(run.spikes), run.lowest.lowest is None
        if self._quiet is None or self._quiet[0] != key:
            self._quiet = key, tuple(self._build_collapses(fell_step))
        return self._quiet[1]

    def _build_collapses(self, fell_step: int | None) -> Iterable[CollapseRow]:
        run, names = self._run, {signal.spec.name for signal in self.reported}
        for signal in self.reported:
            if signal.spec.name == TRUNCATION:
                yield _collapse("truncation", "", signal.streak)
            elif not signal.spec.is_raw:
                yield _collapse("blow_up", signal.spec.name, signal.streak)
        for name, spikes in run.spikes.items():
            steps = spikes.steps
            first, last = (steps[0], steps[-1]) if steps else (None, None)
            yield _collapse_row("spikes", name, len(steps), first, last)
        if ENTROPY in names:
            yield _collapse("entropy_fall", ENTROPY, run.fall.streak)
        if run.lowest.lowest is not None:
            if TRUNCATION in names:
                yield _collapse("dead", "", run.dead)
            yield _collapse("not_learning", "", run.still.streak)
            yield _collapse("reward_fall", REWARD, run.reward_fall, fell_step)


# unchanged rows are the same object, so they compare fast
_collapse_row = lru_cache(maxsize=1024)(CollapseRow)


def _collapse(
    kind: CollapseKind, signal: str, streak: Streak, onset_step: int | None = None
) -> CollapseRow:
    """``onset_step``: a better onset than the first step with the state, if there is one."""
    onset = streak.onset_step if not streak.num_steps or onset_step is None else onset_step
    return _collapse_row(kind, signal, streak.num_steps, onset, streak.last_step)

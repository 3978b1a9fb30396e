"""Rows of a SignalState: which families moved, which collapses last.

Most steps of a run change neither: then the rows are the objects of the step before, so that who
reads them sees at once that nothing has changed.
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
    """Of one run; only signals that were reported have rows."""

    def __init__(
        self, signals: Sequence[Signal], symptoms: Iterable[Symptom], run: RunCollapses
    ) -> None:
        self._signals, self._symptoms, self._run = signals, tuple(symptoms), run
        self.known: list[Signal] = []
        self._unknown = list(signals)
        self._known_symptoms: list[Symptom] = []
        self._newest: StateRows = (), ()
        # which collapses have rows, and those rows while nothing is collapsed
        self._quiet: tuple[tuple[int, int, bool], tuple[CollapseRow, ...]] | None = None

    def rows(self, row: int, fell_step: int | None) -> StateRows:
        """``fell_step``: since when the reward has been below its best."""
        unknown = [signal for signal in self._unknown if not signal.is_known]
        if len(unknown) != len(self._unknown):
            self._unknown = unknown
            self.known = [signal for signal in self._signals if signal.is_known]
            families = {signal.spec.symptom for signal in self.known}
            self._known_symptoms = [s for s in self._symptoms if s.name in families]
        symptoms = tuple([symptom.as_row(row) for symptom in self._known_symptoms])
        before = self._newest[0]
        self._newest = before if symptoms == before else symptoms, self._collapses(fell_step)
        return self._newest

    def _collapses(self, fell_step: int | None) -> tuple[CollapseRow, ...]:
        run = self._run
        if run.is_any or any(signal.streak.num_steps for signal in self.known):
            return tuple(self._made_collapses(fell_step))
        key = len(self.known), len(run.spikes), run.lowest.lowest is None
        if self._quiet is None or self._quiet[0] != key:
            self._quiet = key, tuple(self._made_collapses(fell_step))
        return self._quiet[1]

    def _made_collapses(self, fell_step: int | None) -> Iterable[CollapseRow]:
        run, names = self._run, {signal.spec.name for signal in self.known}
        for signal in self.known:
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


# unchanged rows are the same object: made once, and equal without comparing fields
_collapse_row = lru_cache(maxsize=1024)(CollapseRow)


def _collapse(
    kind: CollapseKind, signal: str, streak: Streak, onset_step: int | None = None
) -> CollapseRow:
    """``onset_step``: where it is known better than from the first step with the state."""
    onset = streak.onset_step if not streak.num_steps or onset_step is None else onset_step
    return _collapse_row(kind, signal, streak.num_steps, onset, streak.last_step)

"""One run of a log through the agent's signals and alerts, and from how much of it they judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from dfx_agent.base.text import listed
from dfx_agent.catalogue.alerts.conditions import Condition
from dfx_agent.catalogue.alerts.declared import alerts_with
from dfx_agent.catalogue.alerts.declared.stability import DIVERGENCE, FAMILIES
from dfx_agent.catalogue.native import load
from dfx_agent.catalogue.native.signal_sources import Input, input_of
from dfx_agent.commands.backtest.audit import Audit
from dfx_agent.commands.backtest.episodes import STEP_CLOCKED, Episode, EpisodeFinder
from dfx_agent.commands.backtest.plot import Curves
from dfx_agent.commands.backtest.unreported_tail import UnreportedTail
from dfx_agent.judge.divergence.bank import SignalBank
from dfx_agent.judge.divergence.baseline import WARM_STEPS
from dfx_agent.judge.divergence.collapse import NOT_LEARNING_STEPS, SIZED
from dfx_agent.judge.divergence.inputs import SignalInputs
from dfx_agent.judge.divergence.signal import Signal
from dfx_agent.judge.divergence.symptoms import SIGNALS
from dfx_agent.judge.divergence.verdict import can_vote
from dfx_agent.node.logs.reader import Log
from dfx_agent.node.logs.run import Row, Run
from dfx_agent.snapshot import SignalState

# key -> value, of those that differ from the catalogue
Thresholds: TypeAlias = Mapping[str, float]
SignalValues: TypeAlias = tuple[int, dict[str, float]]

# fewer cannot agree: without a signal that can page by its size "no page" would say nothing
LEAST_FAMILIES = 2
_NUM_ROWS_OF_BATCH = 256
_FAMILY_OF = {spec.name: spec.symptom for spec in SIGNALS}
_VOTING = frozenset(FAMILIES)


@dataclass
class Coverage:
    """From what a run was judged. ``keys``: signal -> the log's keys it was read from.

    ``varied``: signals whose values were not all the same. ``restarts``: where the step fell back,
    as row, step before and step after. ``has_numbers``: a row has a number besides its step.
    """

    keys: dict[str, list[str]] = field(default_factory=dict)
    num_rows: int = 0
    num_rows_judged: int = 0
    has_numbers: bool = False
    critical: Condition = DIVERGENCE.condition
    varied: set[str] = field(default_factory=set)
    restarts: list[tuple[int, int, int]] = field(default_factory=list)
    tail: UnreportedTail = field(default_factory=UnreportedTail)
    _newest_step: int | None = None
    _newest_scored: list[str] = field(default_factory=list)
    _is_comparable: bool = False

    @property
    def families(self) -> list[str]:
        found = {_FAMILY_OF.get(signal) for signal in self.keys}
        return [family for family in FAMILIES if family in found]

    @property
    def missing_families(self) -> list[str]:
        return [family for family in FAMILIES if family not in self.families]

    @property
    def can_page(self) -> bool:
        """Whether the page would hold if all that was found agreed; a blow-up pages alone."""
        return can_vote(self.families, self.critical)

    @property
    def is_enough(self) -> bool:
        """Whether a page is possible: two families can agree, or one signal can blow up."""
        return len(self.families) >= LEAST_FAMILIES or bool(self.keys.keys() & SIZED)

    @property
    def why_not_judged(self) -> str:
        """Empty where at least one row was judged."""
        if not (self.has_numbers or self.keys):
            return f"no number in its {self.num_rows:,} rows, or only the step"
        if not self.is_enough:
            return f"no signal of {listed(self.missing_families)}"
        if self.num_rows_judged:
            return ""
        if self.num_rows > WARM_STEPS and not self.varied:
            return f"the values of {listed(sorted(self.keys))} never change"
        rows = "1 row" if self.num_rows == 1 else f"{self.num_rows:,} rows"
        return f"no row could be compared with rows before it ({rows})"

    def count_judged(self, state: SignalState, signals: Iterable[Signal]) -> None:
        """A row is judged when two families that vote, or one sized signal, were scored on it.

        A constant cannot be compared, unless it has lasted so long that nothing is learned.
        """
        scored = [signal.signal for signal in signals if signal.z is not None and signal.has_varied]
        if scored != self._newest_scored:
            self._newest_scored = scored
            can_agree = len({_FAMILY_OF[signal] for signal in scored} & _VOTING) >= LEAST_FAMILIES
            self._is_comparable = can_agree or any(signal in SIZED for signal in scored)
        self.num_rows_judged += self._is_comparable or any(
            row.num_steps >= NOT_LEARNING_STEPS
            for row in state.collapses
            if row.kind == "not_learning"
        )
        if self._newest_step is not None and state.step < self._newest_step:
            self.restarts.append((state.row, self._newest_step, state.step))
        self._newest_step = state.step


@dataclass
class Report:
    """What one run gave. ``name`` is that of the run within its file.

    ``is_cut``: the file is damaged, and what stands behind that was not read. ``num_left_out``:
    damaged lines and rows.
    """

    file: str
    name: str = ""
    framework: str = ""
    coverage: Coverage = field(default_factory=Coverage)
    alerts: list[Episode] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    audit: list[str] = field(default_factory=list)
    is_cut: bool = False
    num_left_out: int = 0
    error: str | None = None
    curves: Curves | None = None

    @property
    def num_rows(self) -> int:
        return self.coverage.num_rows

    @property
    def is_judged(self) -> bool:
        """Whether "no page" says something: rows were judged, or there was a page."""
        is_paged = any(alert.severity == "critical" for alert in self.alerts)
        return is_paged or not self.coverage.why_not_judged

    @property
    def title(self) -> str:
        return f"{self.file} [{self.name}]" if self.name else self.file


class SignalRows:
    """Rows of native values as the bank observes them: step, signal -> value.

    ``framework`` is asked when the first row is there.
    """

    def __init__(self, rows: Iterable[Row], framework: Callable[[], str]) -> None:
        self.coverage, self.audit = Coverage(), Audit()
        self._rows = rows
        self._framework = framework
        self._keys: set[str] = set()
        self._route: dict[str, Input] = {}

    def __iter__(self) -> Iterator[SignalValues]:
        inputs, coverage = SignalInputs(), self.coverage
        for step, values in self._rows:
            if not values.keys() <= self._keys:
                self._add_keys(values)
            sources = {
                source: scale * values[key]
                for key, (source, scale) in self._route.items()
                if key in values
            }
            signals = inputs.signals(sources)
            self.audit.observe(signals, values)
            coverage.num_rows += 1
            coverage.tail.observe(step, signals.keys())
            yield step, signals
        for known in inputs.save():
            chosen = known.metric, known.labels
            keys = [key for key, to in self._route.items() if to.source == chosen]
            coverage.keys[known.signal] = keys

    def _add_keys(self, keys: Iterable[str]) -> None:
        """Where the values of keys go; of several keys for one source the best stands last."""
        framework = self._framework()
        names = load(framework)
        new = set(keys) - self._keys
        self._keys |= new
        self.coverage.has_numbers = True
        self.audit.add_keys(framework, sorted(new))
        found = {key: to for key in new if (to := input_of(framework, key))} | self._route
        ordered = sorted(found, key=lambda key: (-names.priority(key), key))
        self._route = {key: found[key] for key in ordered}


def signal_rows(run: Run) -> Iterator[SignalValues]:
    return iter(SignalRows(run.rows, lambda: run.framework))


def replay(
    rows: Iterable[SignalValues],
    curves: Curves | None = None,
    thresholds: Thresholds = MappingProxyType({}),
    coverage: Coverage | None = None,
) -> list[Episode]:
    """The alerts of a run that reported these rows; what is to be drawn goes into ``curves``.

    ``thresholds`` differ from the catalogue's.
    """
    (divergence,) = alerts_with(thresholds, (DIVERGENCE,))
    alerts = alerts_with(thresholds, STEP_CLOCKED)
    bank, finder = SignalBank(divergence.condition), EpisodeFinder(alerts)
    coverage = coverage or Coverage()
    coverage.critical = divergence.condition
    for step, values in _in_batches(rows):
        bank.advance(step, values)
        state = bank.state_of_run()
        coverage.count_judged(state, bank.reported_signals)
        if curves is not None:
            curves.add(bank.state())
        finder.observe(state, bank.reported_signals, bank.state)
    coverage.varied |= {signal.signal for signal in bank.reported_signals if signal.has_varied}
    return finder.episodes


def _in_batches(rows: Iterable[SignalValues]) -> Iterator[SignalValues]:
    """The same rows. Reading many, then judging many, is 10 % faster than taking turns at each row.

    The code of either stays in the caches of the processor.
    """
    waiting = iter(rows)
    while batch := list(islice(waiting, _NUM_ROWS_OF_BATCH)):
        yield from batch


def replay_log(log: Log, thresholds: Thresholds, *, is_drawn: bool) -> Report:
    """UnreadableLogError when it holds no report."""
    rows = SignalRows(log.rows(), lambda: log.framework)
    curves = Curves() if is_drawn else None
    alerts = replay(rows, curves, thresholds, rows.coverage)
    for keys in rows.coverage.keys.values():
        keys[:] = map(log.written, keys)
    return Report(
        file=str(Path(log.path)),
        name=log.name,
        framework=log.framework_name,
        coverage=rows.coverage,
        alerts=alerts,
        warnings=[*rows.coverage.tail.lines, *log.warnings],
        is_cut=log.is_cut,
        num_left_out=log.num_left_out,
        audit=rows.audit.lines,
        curves=curves,
    )

"""What one page looks at, of a snapshot: bounded, however many ranks the job has.

Of the run in view every rank has a place of a few words, and some are shown in full
(``shown_ranks``); steps are means over their ranks. Other runs are names. The page of a small job
sees all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import isfinite, nan

from dfx_agent.base.text import headline
from dfx_agent.catalogue.native.meaning import keys_by_signal
from dfx_agent.catalogue.performance import samples_per_second
from dfx_agent.catalogue.reward import scores_by_source
from dfx_agent.catalogue.utilisation import work_lines
from dfx_agent.snapshot import (
    AgentRow,
    Blindness,
    Bottleneck,
    CollectiveTime,
    DeviceMemory,
    DroppedRanks,
    EnginePool,
    EventLoopRow,
    FaultRow,
    GroupRow,
    HeldMemory,
    HostMemory,
    Incident,
    LedgerState,
    NonAllocatorMemory,
    OpenSpan,
    OutsideLook,
    RankRow,
    RankSource,
    RankState,
    RunRow,
    RunVerdicts,
    ScalarRow,
    SignalState,
    Snapshot,
    StageDevice,
    Standing,
    StepCell,
    StepRow,
    TimeSplit,
    Verdict,
)
from dfx_agent.web.visible_ranks import RankKey, blames, key_of, shown_ranks
from dfx_agent.web.wall import Wall, wall_of

# fields of a run that its page shows as they are
_UNCHANGED = (
    "run", "framework", "attempt", "begin_seconds", "scalars", "num_stale_scalars", "verdicts",
    "signals", "num_late_signals", "faults", "incidents", "past_incidents", "ending", "standing",
    "blind", "dropped_ranks", "engines", "bottleneck", "part", "step_origin", "ledger",
)  # fmt: skip
# gauges of the guest about itself: which hooks work, and what it costs
_HOOKS = ("patch/", "guest/given_up")
_OVERHEAD = "guest/overhead_ratio"


@dataclass(frozen=True, slots=True)
class Look:
    """What a page shows: a run, "" for the latest live one, and ranks that were opened."""

    run: str = ""
    ranks: tuple[RankKey, ...] = ()


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One rank at a glance: ``now`` is what it is in, as in "backward"; "" between stages.

    ``lost`` counts its records that were lost, overwritten before the agent came, and dropped by
    the guest; empty where there are none. ``blame`` is the severity of the worst incident that
    blames it, "peer" of a peer of such a rank, "" for none. ``place`` is its number along each axis
    of the job's layout.
    """

    role: str
    rank: str
    pid: int
    node: str
    local_rank: int | None
    state: RankState
    step: int | None
    kind: str
    now: str
    blame: str
    lost: tuple[int, ...] = ()
    place: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShownRank:
    """One rank in full, as far as the page draws it. ``tokens``: of its latest closed step."""

    role: str
    rank: str
    pid: int
    node: str
    state: RankState
    step: int | None
    inflight: tuple[OpenSpan, ...]
    totals: TimeSplit
    current: TimeSplit
    last: TimeSplit | None
    num_lost_records: int
    collectives: tuple[CollectiveTime, ...]
    groups: tuple[GroupRow, ...]
    devices: tuple[DeviceMemory, ...]
    device_names: tuple[str, ...]
    device_stages: tuple[StageDevice, ...]
    host_memory: HostMemory | None
    held: tuple[HeldMemory, ...]
    beside_allocator: NonAllocatorMemory | None
    source: RankSource
    outside: OutsideLook | None
    event_loop: EventLoopRow | None
    tokens: Mapping[str, float] = field(default_factory=dict)
    tokens_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ViewedStep:
    """A closed step of one role; ``mean`` over its ``num_ranks``."""

    key: str
    step: int
    role: str
    begin_seconds: float
    end_seconds: float
    missing_ranks: tuple[str, ...]
    bubble_ratio: float | None
    num_ranks: int
    mean: TimeSplit


@dataclass(frozen=True, slots=True)
class RoleTime:
    """Mean of the last steps of a role's ranks; for a role without steps, of all their time."""

    role: str
    num_ranks: int
    is_of_steps: bool
    mean: TimeSplit


@dataclass(frozen=True, slots=True)
class ScoreCounts:
    """Scores of one data source ("" if unknown) since the job began, counted by their size."""

    source: str
    edges: tuple[float, ...]
    """Upper edges of the counts; the last count has no upper edge."""
    counts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class HookGroup:
    """Ranks with equal hooks, and the guest's gauges about the hooks."""

    gauges: Mapping[str, float]
    ranks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ViewedRun:
    """The run in view; fields as in ``RunRow``. ``overhead_ratio``: the most of a rank.

    ``work_lines``: MFU in words, a line for each role.
    """

    run: str
    framework: str
    attempt: int
    begin_seconds: float
    num_living: int
    places: tuple[RankSummary, ...] = ()
    ranks: tuple[ShownRank, ...] = ()
    steps: tuple[ViewedStep, ...] = ()
    roles: tuple[RoleTime, ...] = ()
    hooks: tuple[HookGroup, ...] = ()
    overhead_ratio: float | None = None
    num_overheads: int = 0
    queue_depth: Mapping[str, float] = field(default_factory=dict)
    scalars: tuple[ScalarRow, ...] = ()
    num_stale_scalars: int = 0
    verdicts: tuple[Verdict, ...] = ()
    headlines: tuple[str, ...] = ()
    """Of each verdict: who and what, in at most 12 words."""
    signals: SignalState | None = None
    num_late_signals: int = 0
    faults: tuple[FaultRow, ...] = ()
    incidents: tuple[Incident, ...] = ()
    past_incidents: tuple[Incident, ...] = ()
    ending: str = ""
    standing: Standing | None = None
    blind: Blindness | None = None
    dropped_ranks: tuple[DroppedRanks, ...] = ()
    engines: EnginePool | None = None
    bottleneck: Bottleneck | None = None
    part: str = ""
    step_origin: str = ""
    work_lines: tuple[str, ...] = ()
    samples_per_second: float | None = None
    ledger: LedgerState | None = None
    scores: tuple[ScoreCounts, ...] = ()
    meant_keys: Mapping[str, str] = field(default_factory=dict)
    """Signal -> the key that means it, of those that no file of the catalogue names."""
    wall: Wall = field(default_factory=Wall)
    """Columns in the order of ``places``."""


@dataclass(frozen=True, slots=True)
class PageView:
    """One page's part of a snapshot. Of the runs one alone has ranks; "" where there is none."""

    time_seconds: float
    agent: AgentRow
    in_view: str
    runs: tuple[ViewedRun, ...]
    finished: tuple[RunVerdicts, ...] = ()


FullRows = Callable[[str, Collection[RankRow]], Collection[RankRow]]


def as_they_are(_run: str, rows: Collection[RankRow]) -> Collection[RankRow]:
    """Rows of a node have all that is known."""
    return rows


class Viewer:
    """Views of one look; the results for closed steps are cached."""

    def __init__(self, look: Look, full_rows: FullRows = as_they_are) -> None:
        """``full_rows``: (run, rows) -> the same rows with all that is known of these ranks."""
        self._look, self._full_rows = look, full_rows
        self._steps: dict[str, tuple[StepRow, ViewedStep]] = {}

    def view(self, snapshot: Snapshot) -> PageView:
        chosen = chosen_run(snapshot.runs, self._look.run)
        name = chosen.run if chosen else ""
        rows = (self._viewed(run) if run is chosen else _named(run) for run in snapshot.runs)
        return PageView(snapshot.time_seconds, snapshot.agent, name, tuple(rows), snapshot.finished)

    def _viewed(self, run: RunRow) -> ViewedRun:
        run, shown = self._completed(run)
        cells = {(step.role, cell.rank): cell for step in run.steps for cell in step.cells}
        overheads = list(filter(isfinite, map(_overhead, run.ranks)))
        return ViewedRun(
            **{name: getattr(run, name) for name in _UNCHANGED},
            num_living=_num_living(run),
            places=_places(run),
            ranks=tuple(_shown(rank, cells.get(key_of(rank))) for rank in shown),
            steps=self._viewed_steps(run.steps),
            roles=tuple(_role_times(run.ranks)),
            hooks=_hooks(run.ranks),
            overhead_ratio=max(overheads, default=None),
            num_overheads=len(overheads),
            queue_depth=_sums(rank.queue_depth for rank in run.ranks),
            headlines=tuple(headline(verdict.summary) for verdict in run.verdicts),
            work_lines=work_lines(run),
            samples_per_second=samples_per_second(run),
            scores=tuple(_scores(run)),
            meant_keys=_meant_keys(run.scalars),
            wall=wall_of(run, cells),
        )

    def _completed(self, run: RunRow) -> tuple[RunRow, Collection[RankRow]]:
        """The run with full rows of the ranks that are shown, and these rows."""
        shown = self._full_rows(run.run, shown_ranks(run, self._look.ranks))
        full = {key_of(row): row for row in shown}
        return replace(run, ranks=tuple(full.get(key_of(r), r) for r in run.ranks)), shown

    def _viewed_steps(self, rows: Iterable[StepRow]) -> tuple[ViewedStep, ...]:
        before, self._steps = self._steps, {}
        for row in rows:
            key = f"{row.role}/{row.step}"
            cached = before.get(key)
            is_cached = cached is not None and cached[0] is row
            self._steps[key] = cached if cached and is_cached else (row, _viewed_step(key, row))
        return tuple(step for _, step in self._steps.values())


def chosen_run(runs: Iterable[RunRow], name: str) -> RunRow | None:
    """The run of this name, else the latest run with a live rank, else the latest run."""
    latest_first = sorted(runs, key=lambda run: run.begin_seconds, reverse=True)
    named = (run for run in latest_first if run.run == name)
    living = (run for run in latest_first if _num_living(run))
    return next(named, None) or next(living, None) or next(iter(latest_first), None)


def _named(run: RunRow) -> ViewedRun:
    living = _num_living(run)
    return ViewedRun(run.run, run.framework, run.attempt, run.begin_seconds, living)


def _num_living(run: RunRow) -> int:
    """Of a process that cannot be asked records come."""
    return sum(rank.state in {"live", "unknown"} for rank in run.ranks)


def _places(run: RunRow) -> tuple[RankSummary, ...]:
    blamed = blames(run)
    return tuple(_place(rank, blamed.get(key_of(rank), "")) for rank in run.ranks)


def _place(rank: RankRow, blame: str) -> RankSummary:
    span = rank.inflight[-1] if rank.inflight else None
    lost = rank.num_lost_records, rank.num_earlier_records, rank.num_guest_drops
    return RankSummary(
        rank.role, rank.rank, rank.pid, rank.node, rank.local_rank, rank.state, rank.step,
        span.kind if span else "idle", span.name if span else "", blame,
        lost if any(lost) else (), rank.place,
    )  # fmt: skip


def _shown(rank: RankRow, cell: StepCell | None) -> ShownRank:
    return ShownRank(
        role=rank.role,
        rank=rank.rank,
        pid=rank.pid,
        node=rank.node,
        state=rank.state,
        step=rank.step,
        inflight=rank.inflight,
        totals=rank.totals,
        current=rank.current,
        last=rank.last,
        num_lost_records=rank.num_lost_records,
        collectives=rank.collectives,
        groups=rank.groups,
        devices=rank.devices,
        device_names=rank.device_names,
        device_stages=rank.device_stages,
        host_memory=rank.host_memory,
        held=rank.held,
        beside_allocator=rank.beside_allocator,
        source=rank.source,
        outside=rank.outside,
        event_loop=rank.event_loop,
        tokens=cell.tokens if cell else {},
        tokens_seconds=cell.split.wall_seconds if cell else None,
    )


def _viewed_step(key: str, row: StepRow) -> ViewedStep:
    mean = mean_split([cell.split for cell in row.cells])
    return ViewedStep(
        key, row.step, row.role, row.begin_seconds, row.end_seconds, row.missing_ranks,
        row.bubble_ratio, len(row.cells), mean,
    )  # fmt: skip


def _role_times(ranks: Iterable[RankRow]) -> Iterable[RoleTime]:
    by_role: dict[str, list[RankRow]] = {}
    for rank in ranks:
        if rank.source == "guest":
            by_role.setdefault(rank.role, []).append(rank)
    for role, rows in by_role.items():
        lasts = [row.last for row in rows if row.last]
        splits = lasts or [row.totals for row in rows]
        yield RoleTime(role, len(splits), bool(lasts), mean_split(splits))


def mean_split(splits: list[TimeSplit]) -> TimeSplit:
    """Mean of each part; a rank without a part counts as 0. All zeros without splits."""
    share = 1 / len(splits) if splits else 0.0
    stages: dict[str, float] = {}
    waits: dict[str, dict[str, float]] = {}
    for split in splits:
        _add(stages, split.stage_seconds, share)
        for kind, by_stage in split.wait_seconds.items():
            _add(waits.setdefault(kind, {}), by_stage, share)
    return TimeSplit(
        share * sum(split.wall_seconds for split in splits),
        share * sum(split.active_seconds for split in splits),
        share * sum(split.idle_seconds for split in splits),
        stages,
        waits,
    )


def _sums(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for row in rows:
        _add(sums, row, 1.0)
    return sums


def _add(sums: dict[str, float], parts: Mapping[str, float], share: float) -> None:
    for part, seconds in parts.items():
        sums[part] = sums.get(part, 0.0) + share * seconds


def _meant_keys(scalars: Iterable[ScalarRow]) -> dict[str, str]:
    found = keys_by_signal(row.key for row in scalars if row.metric is None)
    return {signal: keys[0] for signal, keys in found.items()}


def _scores(run: RunRow) -> Iterator[ScoreCounts]:
    for (source,), histogram in sorted(scores_by_source(run).items()):
        counts = (b - a for a, b in pairwise((0.0, *histogram.counts)))
        yield ScoreCounts(source, histogram.bounds, tuple(counts))


def _overhead(rank: RankRow) -> float:
    """NaN if the guest does not measure itself."""
    return rank.gauges.get(_OVERHEAD, nan)


def _hooks(ranks: Iterable[RankRow]) -> tuple[HookGroup, ...]:
    ranks_by_gauges: dict[tuple[tuple[str, float], ...], list[str]] = {}
    for rank in ranks:
        found = tuple(item for item in rank.gauges.items() if item[0].startswith(_HOOKS))
        if found:
            ranks_by_gauges.setdefault(found, []).append(rank.rank)
    return tuple(HookGroup(dict(gauges), tuple(names)) for gauges, names in ranks_by_gauges.items())

"""One closed step as metrics for trackers: native keys first, then ROLL's names.

ROLL documents names for values that other frameworks call differently. A native value of the
catalogue gets ROLL's name too, in ROLL's unit. Values that the agent measures (time, memory,
tokens) get ROLL's name if the framework does not report them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from dfx_agent.catalogue.native import load
from dfx_agent.snapshot import HeldMemory, RankRow, StepRow

_STATS = ("mean", "max", "min")
# catalogue/native/roll.yaml explains the names
_ROLL_NAMES = (
    *(f"critic/{what}/{stat}" for what in ("score", "rewards", "advantages", "returns", "values")
      for stat in _STATS),
    *(f"tokens/{what}_length/{stat}" for what in ("prompt", "response") for stat in _STATS),
    "critic/entropy/mean", "critic/kl", "critic/loss", "critic/lr",
    "actor/pg_loss", "actor/total_loss", "actor/kl_loss", "actor/policykl", "actor/approxkl",
    "actor/clipfrac", "actor/lr", "actor_train/grad_norm", "system/tps",
)  # fmt: skip
_GIB = 1 << 30
_WHEN = {"start/onload": "start", "end/offload": "end"}
# stages inside an update that also have names of their own
_UPDATES = ("actor_update", "critic_update")
_UPDATE_PARTS = ("forward", "backward", "optimizer", "communication")

Series = tuple[str, frozenset[tuple[str, str]]]  # (metric, its labels)


def step_metrics(
    framework: str, scalars: Mapping[str, float], rows: Sequence[StepRow], ranks: Sequence[RankRow]
) -> dict[str, float]:
    """Metrics of one step: native unit for native keys; seconds, GiB, tokens/s for the others.

    ``scalars``: native values (mean over ranks); ``rows``: the step of each role; ``ranks``: the
    current processes.
    """
    metrics = dict(scalars)
    for key, value in (*_renamed(framework, scalars), *_times(rows), *_tokens(rows),
                       *_memory(ranks)):  # fmt: skip
        metrics.setdefault(key, value)
    return metrics


def _renamed(framework: str, scalars: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Native values under ROLL's names; if keys share a series, the first in the mapping."""
    names = load(framework)
    for key in sorted(scalars, key=names.priority):
        native = names.find(key)
        if native is None:
            continue
        labels = frozenset((name, text) for name, text in native.labels.items() if text)
        for name, scale in _roll_names().get((native.metric, labels), ()):
            yield name, scalars[key] * native.scale / scale


@cache
def _roll_names() -> dict[Series, list[tuple[str, float]]]:
    """Catalogue series -> ROLL's names for it, each with the factor from ROLL's unit."""
    roll = load("roll")
    found: dict[Series, list[tuple[str, float]]] = {}
    for name in _ROLL_NAMES:
        native = roll.find(name)
        assert native is not None, name
        labels = frozenset((label, text) for label, text in native.labels.items() if text)
        found.setdefault((native.metric, labels), []).append((name, native.scale))
    return found


def _times(rows: Sequence[StepRow]) -> Iterator[tuple[str, float]]:
    """``total`` is the time of a stage with its waits, ``execute`` without them.

    Values are means over ranks. If roles share a stage, the slowest role counts.
    """
    for row in sorted(rows, key=lambda row: row.begin_seconds - row.end_seconds):
        yield "time/step_total", row.end_seconds - row.begin_seconds
    for part in ("total", "execute"):
        by_stage: dict[str, float] = {}
        for row in rows:
            for stage, seconds in _stage_seconds(row, has_waits=part == "total").items():
                by_stage[stage] = max(by_stage.get(stage, 0.0), seconds)
        yield from ((f"time/{stage}/{part}", seconds) for stage, seconds in by_stage.items())


def _stage_seconds(row: StepRow, *, has_waits: bool) -> dict[str, float]:
    """Mean over the ranks that were in the stage."""
    found: dict[str, list[float]] = {}
    for cell in row.cells:
        stages = dict(cell.split.stage_seconds)
        for waits in cell.split.wait_seconds.values() if has_waits else ():
            for stage, seconds in waits.items():
                if stage:
                    stages[stage] = stages.get(stage, 0.0) + seconds
        _add_update_parts(stages)
        for stage, seconds in stages.items():
            found.setdefault(stage, []).append(seconds)
    return {stage: sum(values) / len(values) for stage, values in found.items()}


def _add_update_parts(stages: dict[str, float]) -> None:
    """Stage times are exclusive, so an update gets the time of its parts back."""
    updates = [stage for stage in _UPDATES if stage in stages]
    parts = [stages[part] for part in _UPDATE_PARTS if part in stages]
    if len(updates) == 1:
        stages[updates[0]] += sum(parts)
    elif parts:
        for update in updates:
            del stages[update]


def _tokens(rows: Sequence[StepRow]) -> Iterator[tuple[str, float]]:
    """Tokens of all ranks of the role that counted most: several roles see the same tokens."""
    totals = []
    for row in rows:
        kinds: dict[str, float] = {}
        for cell in row.cells:
            for kind, count in cell.tokens.items():
                kinds[kind] = kinds.get(kind, 0.0) + count
        if kinds:
            totals.append((sum(kinds.values()), row.end_seconds - row.begin_seconds, kinds))
    if not totals:
        return
    total, seconds, kinds = max(totals, key=lambda item: item[0])
    yield from ((f"tokens/{kind}", count) for kind, count in kinds.items())
    if seconds > 0:
        yield "system/tps", total / seconds


def _memory(ranks: Sequence[RankRow]) -> Iterator[tuple[str, float]]:
    """GiB of the framework's allocator, mean over ranks as in ROLL.

    Values at the time of writing; ``max_allocated`` is the highest sample in that stage so far.
    """
    found: dict[str, list[float]] = {}
    for device in (device for rank in ranks for device in rank.devices):
        index = device.device.rpartition(":")[2]
        for what, used in (("allocated", device.allocated_bytes),
                           ("reserved", device.reserved_bytes)):  # fmt: skip
            if used is not None:
                found.setdefault(f"memory/step/end/onload/{what}/{index}", []).append(used)
        for stage, peak in device.stage_peak_bytes.items():
            key = f"memory/{stage}/end/onload/max_allocated/{index}"
            found.setdefault(key, []).append(peak)
    for held in (held for rank in ranks for held in rank.held):
        for key, num_bytes in _held(held):
            found.setdefault(key, []).append(num_bytes)
    yield from ((key, sum(values) / len(values) / _GIB) for key, values in found.items())


def _held(held: HeldMemory) -> Iterator[tuple[str, float]]:
    """ROLL's process memory while states are on the device, and after they were offloaded."""
    place = held.device.rpartition(":")[2]
    when = _WHEN.get(held.point)
    values = {
        f"memory/{held.stage}/{held.point}/allocated/{place}": held.allocated_bytes,
        f"memory/{held.stage}/{held.point}/reserved/{place}": held.reserved_bytes,
    }
    if when is not None:
        values[f"memory/cpu/{held.stage}/{when}/rss"] = held.resident_bytes
        values[f"memory/cpu/{held.stage}/{when}/vms"] = held.virtual_bytes
    yield from ((key, num_bytes) for key, num_bytes in values.items() if num_bytes is not None)

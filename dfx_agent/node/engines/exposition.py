"""What an engine answers at /metrics, as a reading in our names.

Lines of others are passed over before they are parsed: an engine has thousands of series, of which
we take some hundred. Series that differ by the rank within one engine (tensor or pipeline parallel,
a process of its server) tell of the same requests: of those the largest counts, all others add up.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from dfx_agent.base.text import plain
from dfx_agent.catalogue.engines import COUNTERS
from dfx_agent.node.engines.names import Names, Taken, all_names
from dfx_agent.snapshot import Histogram

MAX_SERIES = 20_000
MAX_UNKNOWN_NAMES = 16
# who speaks, where one endpoint speaks for several: a router, Ray
_WORKERS = ("worker_addr", "ReplicaId", "WorkerId")
# ranks of one engine that work on the same requests
_RANKS = ("tp_rank", "pp_rank", "moe_ep_rank", "pid")
_START = "process_start_time_seconds"
_BY_SOURCE = frozenset({"weight_load_seconds", "sleep_state"})
_LARGEST = ("_ratio", "_per_second", "_seconds", "sleep_state")
# behind these a sample is a part of a histogram or a summary
_PARTS = ("_bucket", "_sum", "_count")


class NotMetricsError(Exception):
    """An answer that says nothing of an engine; the text says why, in one line."""


@dataclass(frozen=True)
class PartKey:
    """Who speaks: one worker behind an endpoint, and its data parallel rank."""

    worker: str = ""
    dp_rank: str = ""


@dataclass
class Part:
    """What one of them said. ``counters`` are as it counts them, from its own start."""

    model: str = ""
    pd: str = ""
    sleep_state: str = ""
    gauges: dict[str, float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    weight_load_seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Reading:
    """One answer. ``start_seconds``: when the engine's process began, where it tells that."""

    engine: str
    parts: Mapping[PartKey, Part]
    unknown_names: frozenset[str] = frozenset()
    start_seconds: float | None = None


def parsed(text: str) -> Reading:
    """NotMetricsError when it is not text of an engine."""
    lines, names, start, unknown = _own_lines(text)
    if names is None:
        raise NotMetricsError("no metric of vLLM or SGLang in the answer")
    try:
        samples = [
            sample
            for family in text_string_to_metric_families("\n".join(lines))
            for sample in family.samples
        ]
    except Exception as error:  # noqa: BLE001 (their parser has no error of its own)
        raise NotMetricsError(f"not Prometheus text: {plain(str(error))[:80]}") from None
    merge = _Merge(names)
    for sample in samples:
        merge.add(sample.name, sample.labels, sample.value)
    parts = _joined(merge.parts())
    if not parts:
        raise NotMetricsError(f"no metric of {names.engine} with a value that we know")
    return Reading(names.engine, parts, frozenset(unknown), start)


def _own_lines(text: str) -> tuple[list[str], Names | None, float | None, set[str]]:
    """Lines with a name that is taken, whose they are, the process' start, and unknown names."""
    lines: list[str] = []
    engine: Names | None = None
    start: float | None = None
    unknown: set[str] = set()
    bases: dict[str, tuple[Names, str] | None] = {}
    for line in text.split("\n"):
        name = line.partition("{")[0].partition(" ")[0]
        if name == _START:
            start = _number(line.rpartition(" ")[2])
        if not name or name[0] == "#":
            continue
        if name not in bases:
            bases[name] = _based(name)
        found = bases[name]
        if found is None:
            continue
        names, base = found
        engine = engine or names
        if names is not engine:
            continue
        if base in names.taken:
            lines.append(line)
        elif not names.knows(base):
            unknown.add(plain(base)[:100])
        if len(lines) > MAX_SERIES:
            raise NotMetricsError(f"more than {MAX_SERIES} series")
    return lines, engine, start, unknown


def _based(sample: str) -> tuple[Names, str] | None:
    for names in all_names():
        base = names.base(sample)
        if base is not None:
            return names, base
    return None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


_Key = tuple[PartKey, str, str]  # who, our metric, and the label that tells its values apart


class _Merge:
    """Samples of one answer by who and what; ``_told`` keeps which name won."""

    def __init__(self, names: Names) -> None:
        self._names = names
        # who and what -> priority -> rank within the engine -> part of a sample -> value
        self._values: dict[_Key, dict[tuple[int, int], dict[str, dict[str, float]]]] = {}
        self._about: dict[PartKey, dict[str, str]] = defaultdict(dict)

    def add(self, sample: str, labels: Mapping[str, str], value: float) -> None:
        base = self._names.base(sample)
        if base is None or not math.isfinite(value) or sample.endswith("_created"):
            return
        who = self._who(labels)
        for taken in self._names.taken[base]:
            if all(labels.get(label) == wanted for label, wanted in taken.where):
                self._put(who, taken, sample, labels, value)

    def _who(self, labels: Mapping[str, str]) -> PartKey:
        given = self._names.labels
        worker = next(filter(None, map(labels.get, _WORKERS)), "")
        key = PartKey(plain(worker), plain(labels.get(given.get("dp_rank", ""), "")))
        for word in ("model", "pd"):
            if text := labels.get(given.get(word, ""), ""):
                self._about[key][word] = plain(text)
        return key

    def _put(
        self, who: PartKey, taken: Taken, sample: str, labels: Mapping[str, str], value: float
    ) -> None:
        own = "sleep_state" if taken.metric == "sleep_state" else "source"
        told_by = plain(labels.get(own, "")) if taken.metric in _BY_SOURCE else ""
        suffix = next((part for part in _PARTS if sample.endswith(part)), "")
        # Ray's agent tells a counter twice, with _total and without
        is_bare = int(not suffix and not sample.endswith("_total"))
        rank = "/".join(labels.get(name, "") for name in _RANKS)
        ranks = self._values.setdefault((who, taken.metric, told_by), {})
        values = ranks.setdefault((taken.priority, is_bare), {}).setdefault(rank, {})
        place = f"le={labels.get('le', '')}" if suffix == "_bucket" else suffix
        if not suffix and taken.metric.endswith(_LARGEST):
            values[place] = max(value, values.get(place, value))
        else:
            values[place] = values.get(place, 0.0) + value

    def parts(self) -> dict[PartKey, Part]:
        found: dict[PartKey, Part] = defaultdict(Part)
        for (who, metric, told_by), by_name in self._values.items():
            _, is_bare = newest = min(by_name)
            ranks = by_name[newest]
            told = max(ranks.values(), key=lambda values: values.get("_count", values.get("", 0.0)))
            self._set(found[who], metric, told_by, told, is_gauge=bool(is_bare))
        for who, about in self._about.items():
            if who in found:
                found[who].model, found[who].pd = about.get("model", ""), about.get("pd", "")
        return dict(found)

    @staticmethod
    def _set(
        part: Part, metric: str, told_by: str, told: Mapping[str, float], *, is_gauge: bool
    ) -> None:
        if metric == "sleep_state":
            if told.get("", 0.0) > 0:
                part.sleep_state = told_by
        elif metric == "weight_load_seconds":
            part.weight_load_seconds[told_by] = told.get("", 0.0)
        elif "" not in told:
            histogram = _histogram(told)
            if histogram is not None:
                part.histograms[metric] = histogram
        elif metric in COUNTERS:
            part.counters[metric] = max(0.0, told[""])
        elif is_gauge:
            part.gauges[metric] = told[""]


def _histogram(told: Mapping[str, float]) -> Histogram | None:
    """Of ``_bucket``, ``_sum`` and ``_count``; None without a count."""
    buckets: dict[float, float] = {}
    for place, value in told.items():
        if place.startswith("le="):
            bound = _bound(place[3:])
            if bound is not None:
                buckets[bound] = value
    num = told.get("_count", buckets.get(math.inf))
    if num is None:
        return None
    counts, highest = [], 0.0
    bounds = sorted(bound for bound in buckets if math.isfinite(bound))
    for bound in bounds:  # processes of one server are read one after the other
        highest = max(highest, buckets[bound])
        counts.append(highest)
    return Histogram(tuple(bounds), (*counts, max(highest, num)), told.get("_sum", 0.0))


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return None if math.isnan(bound) else bound


def _joined(parts: dict[PartKey, Part]) -> dict[PartKey, Part]:
    """What a server of one rank tells without a rank is that rank's."""
    by_worker: dict[str, list[PartKey]] = defaultdict(list)
    for key in parts:
        by_worker[key.worker].append(key)
    for worker, keys in by_worker.items():
        ranked = [key for key in keys if key.dp_rank]
        if len(ranked) == 1 and len(keys) == 2:
            parts[ranked[0]] = _added(parts[ranked[0]], parts.pop(PartKey(worker)))
    return parts


def _added(rank: Part, server: Part) -> Part:
    return Part(
        rank.model or server.model,
        rank.pd or server.pd,
        rank.sleep_state or server.sleep_state,
        {**server.gauges, **rank.gauges},
        {**server.counters, **rank.counters},
        {**server.histograms, **rank.histograms},
        {**server.weight_load_seconds, **rank.weight_load_seconds},
    )

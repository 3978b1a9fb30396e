"""Parses an engine's /metrics page into metrics with our names.

An engine has thousands of series, and we use some hundred, so other lines are skipped before
parsing. Series that differ only by a rank within one engine (tensor or pipeline parallel, server
process) describe the same requests: of these the largest value counts. All others are summed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from dfx_agent.base.text import plain
from dfx_agent.catalogue.engines import COUNTERS
from dfx_agent.node.engines.names import EngineNames, NameMapping, all_names
from dfx_agent.snapshot import Histogram

MAX_SERIES = 20_000
MAX_UNKNOWN_NAMES = 16
# labels that name the worker, if one endpoint reports several: a router, Ray
_WORKERS = ("worker_addr", "ReplicaId", "WorkerId")
# labels of ranks within one engine that work on the same requests
_RANKS = ("tp_rank", "pp_rank", "moe_ep_rank", "pid")
_START = "process_start_time_seconds"
_BY_SOURCE = frozenset({"weight_load_seconds", "sleep_state"})
_LARGEST = ("_ratio", "_per_second", "_seconds", "sleep_state")
# suffixes of samples that belong to a histogram or a summary
_PARTS = ("_bucket", "_sum", "_count")


class NotMetricsError(Exception):
    """An answer without metrics of an engine; the text says why, in one line."""


@dataclass(frozen=True)
class PartKey:
    """One worker behind an endpoint, and its data parallel rank."""

    worker: str = ""
    dp_rank: str = ""


@dataclass
class EnginePart:
    """Values of one worker and rank. ``counters`` count from the engine's own start."""

    model: str = ""
    pd: str = ""
    sleep_state: str = ""
    gauges: dict[str, float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    weight_load_seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineReading:
    """One answer. ``start_seconds``: start of the engine's process, if reported."""

    engine: str
    parts: Mapping[PartKey, EnginePart]
    unknown_names: frozenset[str] = frozenset()
    start_seconds: float | None = None


def parse_metrics(text: str) -> EngineReading:
    """Raises NotMetricsError if the text is not from an engine."""
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
    parts = _join_parts(merge.parts())
    if not parts:
        raise NotMetricsError(f"no known metric of {names.engine} has a value")
    return EngineReading(names.engine, parts, frozenset(unknown), start)


def _own_lines(text: str) -> tuple[list[str], EngineNames | None, float | None, set[str]]:
    """(lines of metrics that are used, the engine, process start, unknown names)."""
    lines: list[str] = []
    engine: EngineNames | None = None
    start: float | None = None
    unknown: set[str] = set()
    bases: dict[str, tuple[EngineNames, str] | None] = {}
    for line in text.split("\n"):
        name = line.partition("{")[0].partition(" ")[0]
        if name == _START:
            start = _number(line.rpartition(" ")[2])
        if not name or name[0] == "#":
            continue
        if name not in bases:
            bases[name] = _base_name(name)
        found = bases[name]
        if found is None:
            continue
        names, base = found
        engine = engine or names
        if names is not engine:
            continue
        if base in names.mappings:
            lines.append(line)
        elif not names.knows(base):
            unknown.add(plain(base)[:100])
        if len(lines) > MAX_SERIES:
            raise NotMetricsError(f"more than {MAX_SERIES} series")
    return lines, engine, start, unknown


def _base_name(sample: str) -> tuple[EngineNames, str] | None:
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


_Key = tuple[PartKey, str, str]  # worker, our metric, and the label that separates its values


class _Merge:
    """Merges the samples of one answer by worker and metric."""

    def __init__(self, names: EngineNames) -> None:
        self._names = names
        # key -> priority -> rank within the engine -> part of a sample -> value
        self._values: dict[_Key, dict[tuple[int, int], dict[str, dict[str, float]]]] = {}
        self._about: dict[PartKey, dict[str, str]] = defaultdict(dict)

    def add(self, sample: str, labels: Mapping[str, str], value: float) -> None:
        base = self._names.base(sample)
        if base is None or not math.isfinite(value) or sample.endswith("_created"):
            return
        key = self._part_key(labels)
        for mapping in self._names.mappings[base]:
            if all(labels.get(label) == wanted for label, wanted in mapping.where):
                self._put(key, mapping, sample, labels, value)

    def _part_key(self, labels: Mapping[str, str]) -> PartKey:
        label_names = self._names.labels
        worker = next(filter(None, map(labels.get, _WORKERS)), "")
        key = PartKey(plain(worker), plain(labels.get(label_names.get("dp_rank", ""), "")))
        for word in ("model", "pd"):
            if text := labels.get(label_names.get(word, ""), ""):
                self._about[key][word] = plain(text)
        return key

    def _put(
        self,
        key: PartKey,
        mapping: NameMapping,
        sample: str,
        labels: Mapping[str, str],
        value: float,
    ) -> None:
        label = "sleep_state" if mapping.metric == "sleep_state" else "source"
        source = plain(labels.get(label, "")) if mapping.metric in _BY_SOURCE else ""
        suffix = next((part for part in _PARTS if sample.endswith(part)), "")
        # Ray's agent exports a counter twice, with _total and without
        is_bare = int(not suffix and not sample.endswith("_total"))
        rank = "/".join(labels.get(name, "") for name in _RANKS)
        ranks = self._values.setdefault((key, mapping.metric, source), {})
        values = ranks.setdefault((mapping.priority, is_bare), {}).setdefault(rank, {})
        sample_part = f"le={labels.get('le', '')}" if suffix == "_bucket" else suffix
        if not suffix and mapping.metric.endswith(_LARGEST):
            values[sample_part] = max(value, values.get(sample_part, value))
        else:
            values[sample_part] = values.get(sample_part, 0.0) + value

    def parts(self) -> dict[PartKey, EnginePart]:
        parts: dict[PartKey, EnginePart] = defaultdict(EnginePart)
        for (key, metric, source), by_name in self._values.items():
            _, is_bare = best = min(by_name)
            ranks = by_name[best]
            sample = max(
                ranks.values(), key=lambda values: values.get("_count", values.get("", 0.0))
            )
            self._set(parts[key], metric, source, sample, is_gauge=bool(is_bare))
        for key, about in self._about.items():
            if key in parts:
                parts[key].model, parts[key].pd = about.get("model", ""), about.get("pd", "")
        return dict(parts)

    @staticmethod
    def _set(
        part: EnginePart, metric: str, source: str, sample: Mapping[str, float], *, is_gauge: bool
    ) -> None:
        if metric == "sleep_state":
            if sample.get("", 0.0) > 0:
                part.sleep_state = source
        elif metric == "weight_load_seconds":
            part.weight_load_seconds[source] = sample.get("", 0.0)
        elif "" not in sample:
            histogram = _histogram(sample)
            if histogram is not None:
                part.histograms[metric] = histogram
        elif metric in COUNTERS:
            part.counters[metric] = max(0.0, sample[""])
        elif is_gauge:
            part.gauges[metric] = sample[""]


def _histogram(sample: Mapping[str, float]) -> Histogram | None:
    """Build a histogram from ``_bucket``, ``_sum`` and ``_count``; None without a count."""
    buckets: dict[float, float] = {}
    for sample_part, value in sample.items():
        if sample_part.startswith("le="):
            bound = _bound(sample_part[3:])
            if bound is not None:
                buckets[bound] = value
    num = sample.get("_count", buckets.get(math.inf))
    if num is None:
        return None
    counts, highest = [], 0.0
    bounds = sorted(bound for bound in buckets if math.isfinite(bound))
    for bound in bounds:  # processes of one server are read one after another
        highest = max(highest, buckets[bound])
        counts.append(highest)
    return Histogram(tuple(bounds), (*counts, max(highest, num)), sample.get("_sum", 0.0))


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return None if math.isnan(bound) else bound


def _join_parts(parts: dict[PartKey, EnginePart]) -> dict[PartKey, EnginePart]:
    """If a server has one rank, values without a rank belong to that rank."""
    by_worker: dict[str, list[PartKey]] = defaultdict(list)
    for key in parts:
        by_worker[key.worker].append(key)
    for worker, keys in by_worker.items():
        ranked = [key for key in keys if key.dp_rank]
        if len(ranked) == 1 and len(keys) == 2:
            parts[ranked[0]] = _merge_parts(parts[ranked[0]], parts.pop(PartKey(worker)))
    return parts


def _merge_parts(rank: EnginePart, server: EnginePart) -> EnginePart:
    return EnginePart(
        rank.model or server.model,
        rank.pd or server.pd,
        rank.sleep_state or server.sleep_state,
        {**server.gauges, **rank.gauges},
        {**server.counters, **rank.counters},
        {**server.histograms, **rank.histograms},
        {**server.weight_load_seconds, **rank.weight_load_seconds},
    )

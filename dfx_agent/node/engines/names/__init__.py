"""Names of engine metrics, one YAML file per engine: our name -> its names, latest first.

Our names are the catalogue's without ``dfx_engine_``. The engine's names have no prefix and no
``_total``, ``_bucket``, ``_sum`` or ``_count``. ``{n: NAME, where: {LABEL: VALUE}}`` selects some
of the series. If an engine exports several of the names at once, the first one counts. ``known``
lists names that are exported but not shown, with ``*`` at the end for a prefix. Any other name is
counted and listed as unknown. Ray's agent writes ``ray_vllm_x`` for ``vllm:x``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

ENGINES = ("vllm", "sglang")
# suffixes that Prometheus clients add to a name, longest first
_SUFFIXES = ("_created", "_bucket", "_count", "_total", "_sum")


@dataclass(frozen=True)
class NameMapping:
    """Maps one native name to our metric. ``priority``: 0 for the latest of equivalent names."""

    metric: str
    priority: int
    where: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class EngineNames:
    """Metric names of one engine. ``labels``: our word -> the engine's label."""

    engine: str
    prefixes: tuple[str, ...]
    labels: Mapping[str, str]
    mappings: Mapping[str, tuple[NameMapping, ...]]
    hidden: frozenset[str]
    hidden_prefixes: tuple[str, ...]

    def base(self, sample: str) -> str | None:
        """The name without prefix and suffix; None for a sample that is not from this engine."""
        for prefix in self.prefixes:
            if sample.startswith(prefix):
                name = sample[len(prefix) :]
                return name if name in self.mappings else self._without_suffix(name)
        return None

    def knows(self, base: str) -> bool:
        return base in self.mappings or base in self.hidden or base.startswith(self.hidden_prefixes)

    def _without_suffix(self, name: str) -> str:
        if name in self.hidden:
            return name
        for suffix in _SUFFIXES:
            if name.endswith(suffix):
                return name.removesuffix(suffix)
        return name


@cache
def all_names() -> tuple[EngineNames, ...]:
    """Names of every engine that has a file in this folder."""
    return tuple(_load(engine) for engine in ENGINES)


def _load(engine: str) -> EngineNames:
    text = files(__package__).joinpath(f"{engine}.yaml").read_text(encoding="utf-8")
    data = yaml.safe_load(text)
    mappings: dict[str, list[NameMapping]] = {}
    for metric, natives in data["metrics"].items():
        for priority, native in enumerate(natives):
            name, where = _native(native)
            mappings.setdefault(name, []).append(NameMapping(metric, priority, where))
    prefix = data["prefix"]
    return EngineNames(
        engine=engine,
        prefixes=(f"{prefix}:", f"ray_{prefix}_", f"ray_{prefix}:"),
        labels=data["labels"],
        mappings={name: tuple(entries) for name, entries in mappings.items()},
        hidden=frozenset(name for name in data["known"] if not name.endswith("*")),
        hidden_prefixes=tuple(name[:-1] for name in data["known"] if name.endswith("*")),
    )


def _native(native: Any) -> tuple[str, tuple[tuple[str, str], ...]]:
    if isinstance(native, str):
        return native, ()
    return native["n"], tuple(native["where"].items())

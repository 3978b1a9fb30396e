"""What engines call their metrics, one YAML file each: our name -> theirs, the newest first.

Ours are the catalogue's without ``dfx_engine_``. Theirs stand without the engine's prefix and
without ``_total``, ``_bucket``, ``_sum`` and ``_count``. ``{n: NAME, where: {LABEL: VALUE}}`` takes
a part of the series. Of several names that are told at once the first counts. ``known`` are names
that are told and not shown, with ``*`` at their end for all that begin so: any further name is
counted as unknown, and named. Ray's agent writes ``ray_vllm_x`` for ``vllm:x``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

ENGINES = ("vllm", "sglang")
# what Prometheus' clients put behind a name, longest first
_SUFFIXES = ("_created", "_bucket", "_count", "_total", "_sum")


@dataclass(frozen=True)
class Taken:
    """One native name: ``priority`` is 0 for the newest of those that mean the same."""

    metric: str
    priority: int
    where: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Names:
    """Of one engine. ``labels``: our word -> its label."""

    engine: str
    prefixes: tuple[str, ...]
    labels: Mapping[str, str]
    taken: Mapping[str, tuple[Taken, ...]]
    known: frozenset[str]
    known_heads: tuple[str, ...]

    def base(self, sample: str) -> str | None:
        """The name without prefix and suffix; None for somebody else's sample."""
        for prefix in self.prefixes:
            if sample.startswith(prefix):
                name = sample[len(prefix) :]
                return name if name in self.taken else self._without_suffix(name)
        return None

    def knows(self, base: str) -> bool:
        return base in self.taken or base in self.known or base.startswith(self.known_heads)

    def _without_suffix(self, name: str) -> str:
        if name in self.known:
            return name
        for suffix in _SUFFIXES:
            if name.endswith(suffix):
                return name.removesuffix(suffix)
        return name


@cache
def all_names() -> tuple[Names, ...]:
    """Of every engine that has a file here."""
    return tuple(_loaded(engine) for engine in ENGINES)


def _loaded(engine: str) -> Names:
    text = files(__package__).joinpath(f"{engine}.yaml").read_text(encoding="utf-8")
    data = yaml.safe_load(text)
    taken: dict[str, list[Taken]] = {}
    for metric, natives in data["metrics"].items():
        for priority, native in enumerate(natives):
            name, where = _native(native)
            taken.setdefault(name, []).append(Taken(metric, priority, where))
    prefix = data["prefix"]
    return Names(
        engine=engine,
        prefixes=(f"{prefix}:", f"ray_{prefix}_", f"ray_{prefix}:"),
        labels=data["labels"],
        taken={name: tuple(entries) for name, entries in taken.items()},
        known=frozenset(name for name in data["known"] if not name.endswith("*")),
        known_heads=tuple(name[:-1] for name in data["known"] if name.endswith("*")),
    )


def _native(native: Any) -> tuple[str, tuple[tuple[str, str], ...]]:
    if isinstance(native, str):
        return native, ()
    return native["n"], tuple(native["where"].items())

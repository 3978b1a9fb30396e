"""Whose keys these are, and keys as the framework spells them.

Exports change keys: a tracker puts "train/" in front, a CSV export writes "_" for "/", ROLL appends
"@mean". The rest of the program knows only the framework's own spelling.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from dfx_agent.ingest.run import Run
from dfx_agent.metrics.native import NativeNames, frameworks, load

_GUEST = "torch"
# few keys fit several frameworks: then it is the more common one
_COMMON = ("verl", "trl")
# an export with more of them is not known
_MAX_SLASHES = 2


def spell_natively(run: Run) -> None:
    """Set the run's framework and give its rows the framework's own keys."""
    keys = dict.fromkeys(key for _, values in run.rows for key in values)
    run.framework, spellings = _best(keys)
    if not run.framework:
        known = ", ".join(name for name in frameworks() if name != _GUEST)
        run.warn(f"no key is known (of {known}): nothing can be scored")
    changed = {key: spelling for key, spelling in spellings.items() if spelling != key}
    if changed:
        run.rows = [
            (step, {changed.get(key, key): value for key, value in values.items()})
            for step, values in run.rows
        ]


def _best(keys: Iterable[str]) -> tuple[str, dict[str, str]]:
    """The framework that knows most keys, and how it spells those it knows."""
    best, known = "", dict[str, str]()
    others = [name for name in frameworks() if name not in (*_COMMON, _GUEST)]
    for framework in (*_COMMON, *others):
        names = load(framework)
        found = {key: spelling for key in keys if (spelling := _spelling(key, names))}
        if len(found) > len(known):
            best, known = framework, found
    return best, known


def _spelling(key: str, names: NativeNames) -> str | None:
    return names.spelling(key) or _with_slashes(key, names)


def _with_slashes(key: str, names: NativeNames) -> str | None:
    """A key whose slashes an export wrote as underscores."""
    if "/" in key:
        return None
    places = [i for i, letter in enumerate(key) if letter == "_"]
    for num_slashes in range(1, _MAX_SLASHES + 1):
        for chosen in combinations(places, num_slashes):
            spelling = "".join("/" if i in chosen else c for i, c in enumerate(key))
            if names.spelling(spelling):
                return spelling
    return None

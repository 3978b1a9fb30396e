"""What changed between two JSON documents: ``patched(a, diff(a, b))`` is ``b``, for any two.

A patch is JSON itself, and one of three:

- ``{"v": value}``: take this value.
- ``{"s": {key: value}, "d": [key], "p": {key: patch}}`` of an object: set, drop, patch inside.
- ``{"o": [...], "p": {index: patch}}`` of a list of objects: its new order, each part either
  ``[begin, end]`` of the old list or ``{"v": rows}``, then patches by place in the new list.

Parts that are empty are left out. Rows are the same where what names them is (``ROW_KEYS``): that
keeps a patch short, and is nothing its truth depends on. The page has the same in delta.js.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

Json = Any
Patch = dict[str, Any]

# what names a row of contract 2 among its neighbours
ROW_KEYS = (
    "run", "role", "rank", "pid", "id", "key", "kind", "name", "group", "stage", "method",
    "device", "signal", "symptom", "direction", "engine", "replica", "title",
)  # fmt: skip


def diff(old: Json, new: Json) -> Patch | None:
    """None where both are the same."""
    if isinstance(old, dict) and isinstance(new, dict):
        return _of_objects(old, new)
    if _are_rows(old) and _are_rows(new):
        return _of_rows(old, new)
    return None if _same(old, new) else {"v": new}


def patched(old: Json, patch: Patch | None) -> Json:
    """``old`` stays as it is; what did not change is shared with it."""
    if patch is None:
        return old
    if "v" in patch:
        return patch["v"]
    if isinstance(old, list):
        return _patched_rows(old, patch)
    gone = set(patch.get("d", ()))
    kept = {key: value for key, value in old.items() if key not in gone}
    inner = {key: patched(old[key], part) for key, part in patch.get("p", {}).items()}
    return {**kept, **patch.get("s", {}), **inner}


def _same(old: Json, new: Json) -> bool:
    """As JSON has it: true is not 1."""
    if type(old) is not type(new):
        return False
    if isinstance(old, list):
        return len(old) == len(new) and all(map(_same, old, new))
    if isinstance(old, dict):
        return old.keys() == new.keys() and all(_same(old[key], new[key]) for key in old)
    return bool(old == new)


def _of_objects(old: dict[str, Json], new: dict[str, Json]) -> Patch | None:
    found: Patch = {"s": {}, "d": [key for key in old if key not in new], "p": {}}
    for key, value in new.items():
        before = old.get(key)
        if key not in old:
            found["s"][key] = value
        elif before is value:
            continue
        elif (inner := diff(before, value)) is not None:
            if "v" in inner:
                found["s"][key] = value
            else:
                found["p"][key] = inner
    return _whole(found)


def _of_rows(old: list[Json], new: list[Json]) -> Patch | None:
    places = {key: place for place, key in enumerate(_keys(old))}
    origins = [places.get(key) for key in _keys(new)]
    found: Patch = {"o": [], "p": {}}
    if origins != list(range(len(old))):
        found["o"] = list(_order(origins, new))
    for place, origin in enumerate(origins):
        if origin is not None and (inner := diff(old[origin], new[place])) is not None:
            found["p"][str(place)] = inner
    if not new and old:
        return {"v": []}
    return _whole(found)


def _order(origins: list[int | None], new: list[Json]) -> Iterable[Json]:
    """Neighbours that come from neighbours, or that are new, are told together."""
    begin = 0
    for end in range(1, len(origins) + 1):
        before, after = origins[end - 1], origins[end] if end < len(origins) else -2
        if (before is None and after is None) or (before is not None and after == before + 1):
            continue
        first = origins[begin]
        yield {"v": new[begin:end]} if first is None else [first, first + end - begin]
        begin = end


def _patched_rows(old: list[Json], patch: Patch) -> list[Json]:
    found: list[Json] = [] if "o" in patch else list(old)
    for part in patch.get("o", ()):
        found += part["v"] if isinstance(part, dict) else old[part[0] : part[1]]
    for place, inner in patch.get("p", {}).items():
        found[int(place)] = patched(found[int(place)], inner)
    return found


def _are_rows(value: Json) -> bool:
    return isinstance(value, list) and all(isinstance(row, dict) for row in value)


def _keys(rows: list[Json]) -> Iterable[tuple[Json, ...]]:
    """What names each; rows of one name are told apart by their order."""
    times: Counter[tuple[Json, ...]] = Counter()
    for row in rows:
        name = tuple(v for key in ROW_KEYS if isinstance(v := row.get(key), str | int))
        times[name] += 1
        yield (*name, times[name])


def _whole(patch: Patch) -> Patch | None:
    told = {part: value for part, value in patch.items() if value}
    return told or None

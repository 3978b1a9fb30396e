"""Whose keys these are, and keys as the framework spells them.

Exports change keys: a tracker puts "train/" in front, a CSV export writes "_" for "/", ROLL appends
"@mean". The rest of the program knows only the framework's own spelling.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

from dfx_agent.catalogue.native import Native, NativeNames, frameworks, is_own, load
from dfx_agent.ingest.key_map import NO_MAP, KeyMap
from dfx_agent.ingest.nan_cells import nan_lines
from dfx_agent.ingest.run import MAX_KEYS, Notes, Row

# few keys fit several frameworks: then it is the more common one
_COMMON = ("verl", "trl")
# an export with more of them is not known
_MAX_SLASHES = 2
_MAX_UNDERSCORES = 12
_MAX_KEY_CHARS = 200
_NUM_KEYS_TOLD = 8
# the framework is told from so much of the beginning, and for as long as no key is known
_NUM_ROWS_LEARNED, _NUM_VALUES_LEARNED = 256, 200_000


class NativeRows:
    """Rows in the framework's own keys. ``framework`` is settled before the first row comes."""

    def __init__(self, rows: Iterable[Row], notes: Notes, key_map: KeyMap = NO_MAP) -> None:
        self._rows = iter(rows)
        self._notes = notes
        self._map = key_map
        self.framework = ""
        self._keys: set[str] = set()
        # key -> how it is spelled, None when it is left out; a key that stays is not here
        self._changed: dict[str, str | None] = {}

    def __iter__(self) -> Iterator[Row]:
        first = self._learn()
        for row in first:
            yield self._spelled(row)
        for row in self._rows:
            if not row[1].keys() <= self._keys:
                self._add_keys(row[1])
            yield self._spelled(row)
        for line in nan_lines(self._notes.num_nan_cells, self._is_known):
            self._notes.add(line)
        if first:
            self._tell_unknown()

    def _is_known(self, key: str) -> bool:
        return key in self._map.spellings or _spelling(key, load(self.framework)) is not None

    def _tell_unknown(self) -> None:
        for key in self._map.spellings.keys() - self._keys:
            self._notes.add(
                f"is named by --map, and no record has it (but {_few(self._keys)})", key
            )
        if not self.framework and not self._map.spellings and not any(map(is_own, self._keys)):
            known = ", ".join(frameworks())
            self._notes.add(f"no key is known (of {known}); name them: --map reward=KEY")

    def _learn(self) -> list[Row]:
        """Read ahead and decide by all keys of it."""
        first: list[Row] = []
        keys: dict[str, None] = {}
        num_values = 0
        while len(first) < _NUM_ROWS_LEARNED and num_values < _NUM_VALUES_LEARNED:
            row = next(self._rows, None)
            if row is None:
                break
            first.append(row)
            keys.update(dict.fromkeys(row[1]))
            num_values += len(row[1])
        self._add_keys(keys)
        return first

    def _add_keys(self, keys: Iterable[str]) -> None:
        new = [key for key in keys if key not in self._keys]
        self._keys.update(new)
        num_kept = len(self._keys) - len(new)
        for key in new[max(0, MAX_KEYS - num_kept) :]:
            self._changed[key] = None
            self._notes.add(f"is beyond {MAX_KEYS:,} keys: left out", f"key {key[:60]!r}")
        kept = new[: max(0, MAX_KEYS - num_kept)]
        if self.framework:
            names = load(self.framework)
            spellings = {key: spelling for key in kept if (spelling := _spelling(key, names))}
        else:
            self.framework, spellings = _best(kept)
        self._changed.update((key, to) for key, to in spellings.items() if to != key)
        if self._map.spellings:
            self._follow_map(kept)

    def _follow_map(self, keys: Iterable[str]) -> None:
        """What the user names wins over what the framework's names say."""
        names = load(self.framework)
        told = [(names.find(to), key) for key, to in self._map.spellings.items()]
        for key in keys:
            mapped = self._map.spellings.get(key)
            if mapped is not None:
                self._changed[key] = mapped
                continue
            rival = _named_for_the_same(names.find(self._changed.get(key) or key), told)
            if rival is not None:
                self._changed[key] = None
                self._notes.add(f"is left out: --map names {rival!r} for it", key)

    def _spelled(self, row: Row) -> Row:
        changed = self._changed
        if not changed:
            return row
        step, values = row
        spelled = {}
        for key, value in values.items():
            to = changed.get(key, key)
            if to is not None:
                spelled[to] = value
        return step, spelled


def _few(keys: Iterable[str]) -> str:
    some = sorted(key[:60] for key in keys)
    return ", ".join(some[:_NUM_KEYS_TOLD]) + (", ..." if len(some) > _NUM_KEYS_TOLD else "")


def is_known_key(key: str) -> bool:
    """Whether any framework knows this key or what an export makes of it."""
    return any(_spelling(key, load(name)) for name in frameworks())


def _named_for_the_same(
    native: Native | None, told: Iterable[tuple[Native | None, str]]
) -> str | None:
    """The key that the user named for the series of this one."""
    if native is None:
        return None
    return next((key for other, key in told if other and _place(other) == _place(native)), None)


def _place(native: Native) -> tuple[str, dict[str, str]]:
    return native.metric, dict(native.labels)


def _best(keys: Iterable[str]) -> tuple[str, dict[str, str]]:
    """The framework that knows most keys, and how it spells those it knows."""
    best, known = "", dict[str, str]()
    theirs = [key for key in keys if not is_own(key)]
    others = [name for name in frameworks() if name not in _COMMON]
    for framework in (*_COMMON, *others):
        names = load(framework)
        found = {key: spelling for key in theirs if (spelling := _spelling(key, names))}
        if len(found) > len(known):
            best, known = framework, found
    return best, known


def _spelling(key: str, names: NativeNames) -> str | None:
    return names.spelling(key) or _with_slashes(key, names)


def _with_slashes(key: str, names: NativeNames) -> str | None:
    """A key whose slashes an export wrote as underscores."""
    if "/" in key or len(key) > _MAX_KEY_CHARS:
        return None
    places = [i for i, letter in enumerate(key) if letter == "_"][:_MAX_UNDERSCORES]
    for num_slashes in range(1, _MAX_SLASHES + 1):
        for chosen in combinations(places, num_slashes):
            spelling = "".join("/" if i in chosen else c for i, c in enumerate(key))
            if names.spelling(spelling):
                return spelling
    return None

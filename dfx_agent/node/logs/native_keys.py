"""Whose keys these are, and keys as the framework spells them.

Exports change keys: a tracker puts "train/" in front, a CSV export writes "_" for "/", ROLL appends
"@mean". The rest of the program knows only the framework's own spelling.

A signal for which no key is known is read from the key that means it, as if the user had named that
key with --map. Values that contradict the meaning end that.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from dfx_agent.catalogue.native import MAPPED_PREFIX, Native, frameworks, is_own, load
from dfx_agent.catalogue.native.meaning import keys_by_signal, meaning_of
from dfx_agent.catalogue.native.signal_sources import input_of, signal_of
from dfx_agent.node.logs.framework_spelling import (
    best_framework,
    is_of_one_framework,
    may_mean_a_signal,
    spelling_of,
)
from dfx_agent.node.logs.impossible_values import (
    SHARES,
    ImpossibleValues,
    contradiction,
    is_impossible,
    out_of_range,
)
from dfx_agent.node.logs.key_map import NO_MAP, KeyMap
from dfx_agent.node.logs.nan_cells import nan_lines
from dfx_agent.node.logs.run import MAX_KEYS, Notes, Record, Row

_NUM_KEYS_LISTED = 8
# the framework is detected from this much of the beginning, and until a key is known
_NUM_ROWS_LEARNED, _NUM_VALUES_LEARNED = 256, 200_000
# a framework that gives so many signals under names of its own, with a "/", is the one that wrote
# the log: the keys that it does not name are the user's own, and of these only the reward is read
_MANY_SIGNALS = 3
# a key with so much fewer values than another one of the same signal is not preferred to that
_SPARSE = 4


class NativeRows:
    """Rows in the framework's own keys. ``framework`` is settled before the first row comes.

    ``is_sure``: a key of it is no word that trainers of no framework write too.
    """

    def __init__(self, rows: Iterable[Row], notes: Notes, key_map: KeyMap = NO_MAP) -> None:
        self._rows = iter(rows)
        self._notes = notes
        self._map = key_map
        self.framework = ""
        self.is_sure = False
        self._keys: set[str] = set()
        # key -> how it is spelled, None when it is left out; a key that stays is not here
        self._changed: dict[str, str | None] = {}
        self._signals: set[str] = set()  # those that some key gives
        self._own_signals: set[str] = set()  # those of keys that only one framework writes so
        self._shares: set[str] = set()  # spellings of shares that were read by meaning
        self._impossible = ImpossibleValues(notes)

    def written(self, spelling: str) -> str:
        """The key of the log for a key as ``rows`` spell it."""
        signal = spelling.removeprefix(MAPPED_PREFIX)
        if signal != spelling:
            mapped = (key for key, to in self._map.spellings.items() if to == spelling)
            named = next((key for key in mapped if key in self._keys), spelling)
            return self._notes.guessed.get(signal, named)
        if spelling in self._keys:
            return spelling
        return next((key for key, to in self._changed.items() if to == spelling), spelling)

    def __iter__(self) -> Iterator[Row]:
        first = self._learn()
        for row in first:
            yield self._spelled(row)
        for row in self._rows:
            if not row[1].keys() <= self._keys:
                self._read_by_meaning(self._add_keys(row[1]), [row])
            yield self._spelled(row)
        self._note_guesses()
        for line in nan_lines(self._notes.num_nan_cells, self._is_known):
            self._notes.add(line)
        if first:
            self._note_unknown()

    def _is_known(self, key: str) -> bool:
        is_named = key in self._map.spellings or key in self._notes.guessed.values()
        return is_named or spelling_of(key, load(self.framework)) is not None

    def _note_unknown(self) -> None:
        for key in self._map.spellings.keys() - self._keys:
            self._notes.add(
                f"is named by --map, and no record has it (but {_few(self._keys)})", key
            )
        is_known = self.framework or self._signals or any(map(is_own, self._keys))
        if self._keys and not is_known and not self._map.spellings:
            names = ", ".join(frameworks())
            self._notes.add(f"no key is known (of {names}); name them: --map reward=KEY")

    def _learn(self) -> list[Row]:
        """Read ahead, and decide by all keys of the rows that were read."""
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
        self._read_by_meaning(self._add_keys(keys), first)
        return first

    def _read_by_meaning(self, keys: Sequence[str], rows: Sequence[Row]) -> None:
        """Choose keys for the signals that no known key gives, as far as the values allow it."""
        names = load(self.framework)
        candidates = []
        for key in keys:
            written: str | None = self._changed.get(key, key)
            signal = written and signal_of(self.framework, written)
            if signal and written:
                if signal == "entropy" and self._is_no_entropy(key, rows):
                    continue
                self._signals.add(signal)
                self._add_range(written, signal)
                if "/" in written.removeprefix("train/"):
                    self._own_signals.add(signal)
            elif written and may_mean_a_signal(key, names.find(written)):
                candidates.append(key)
        ranked = keys_by_signal(candidates)
        is_complete = len(self._own_signals) >= _MANY_SIGNALS
        chosen = {
            signal: best
            for signal, ordered in ranked.items()
            if signal not in self._signals
            and (signal == "reward" or not is_complete)
            and (best := self._best_key(signal, ordered, rows))
        }
        if self._notes.is_counted and len(chosen) + len(self._signals) < 2:
            self._note_any_table(chosen)
            return
        for signal, key in chosen.items():
            spelling = MAPPED_PREFIX + signal
            self._changed[key] = spelling
            self._signals.add(signal)
            self._notes.guessed[signal] = key
            if signal in SHARES:
                self._shares.add(spelling)
            else:
                self._impossible.signals[spelling] = signal

    def _note_any_table(self, chosen: Mapping[str, str]) -> None:
        """One signal without a step: the rows of any table may be called a score."""
        for signal, key in chosen.items():
            option = f"--map {shlex.quote(f'{signal}={key}')}"
            self._notes.add(
                f"may be of any table, as nothing counts steps: to judge it, {option}", key
            )

    def _is_no_entropy(self, key: str, rows: Sequence[Row]) -> bool:
        """Whether a key named entropy holds something else; then it is left out."""
        why = contradiction("entropy", (row[1][key] for row in rows if key in row[1]))
        if why is None or key in self._map.spellings:
            return False
        self._changed[key] = None
        self._notes.add(f"is not read as entropy: {why}", key)
        return True

    def _add_range(self, spelling: str, signal: str) -> None:
        """Add the range of a signal, unless the framework uses another unit."""
        native_input = input_of(self.framework, spelling)
        if native_input and native_input.scale == 1.0 and signal != "truncation":
            self._impossible.signals[spelling] = signal

    def _best_key(self, signal: str, keys: Sequence[str], rows: Sequence[Row]) -> str | None:
        values = {key: [row[1][key] for row in rows if key in row[1]] for key in keys}
        most = max(map(len, values.values()))
        dense = [key for key in keys if len(values[key]) * _SPARSE >= most]
        for key in (*dense, *(key for key in keys if key not in dense)):
            why = contradiction(signal, values[key])
            if why is None:
                self._note_equals(signal, key, keys)
                return key
            self._notes.add(f"is not read as {signal}: {why}", key)
        return None

    def _note_equals(self, signal: str, chosen: str, keys: Sequence[str]) -> None:
        rank = _rank(chosen)
        equals = [key for key in keys if _rank(key) == rank]
        if len(equals) > 1:
            others = _few(key for key in equals if key != chosen)
            self._notes.add(f"is read as {signal}; equally good: {others}", chosen)

    def _note_guesses(self) -> None:
        """Note the options that give the same reading, in one line."""
        guessed = {name: key for name, key in self._notes.guessed.items() if key != name}
        if guessed:
            read = ", ".join(f"{key[:60]} as {name}" for name, key in guessed.items())
            words = (shlex.quote(f"{name}={key}") for name, key in guessed.items())
            options = " ".join(f"--map {word}" for word in words)
            self._notes.add(f"Read by meaning: {read}. To fix or change it: {options}")

    def _end_guess(self, spelling: str, value: float) -> None:
        """Stop reading the key, because this value contradicts its meaning."""
        signal = spelling.removeprefix(MAPPED_PREFIX)
        self._shares.discard(spelling)
        key = self._notes.guessed.pop(signal)
        self._changed[key] = None
        self._notes.add(f"is read as {signal} no longer: {out_of_range(signal, value)}", key)

    def _add_keys(self, keys: Iterable[str]) -> list[str]:
        """Learn how keys are spelled. Returns those that are new."""
        new = [key for key in keys if key not in self._keys]
        self._keys.update(new)
        num_before = len(self._keys) - len(new)
        for key in new[max(0, MAX_KEYS - num_before) :]:
            self._changed[key] = None
            self._notes.add(f"is beyond {MAX_KEYS:,} keys: left out", f"key {key[:60]!r}")
        accepted = new[: max(0, MAX_KEYS - num_before)]
        if self.framework:
            names = load(self.framework)
            spellings = {key: spelling for key in accepted if (spelling := spelling_of(key, names))}
        else:
            self.framework, spellings = best_framework(accepted)
        self.is_sure = self.is_sure or any(map(is_of_one_framework, spellings))
        self._changed.update((key, to) for key, to in spellings.items() if to != key)
        if self._map.spellings:
            self._follow_map(accepted)
        return accepted

    def _follow_map(self, keys: Iterable[str]) -> None:
        """Apply the user's names, which override those of the framework."""
        names = load(self.framework)
        named_keys = [(names.find(to), key) for key, to in self._map.spellings.items()]
        for key in keys:
            mapped = self._map.spellings.get(key)
            if mapped is not None:
                self._changed[key] = mapped
                continue
            rival = _named_for_the_same(names.find(self._changed.get(key) or key), named_keys)
            if rival is not None:
                self._changed[key] = None
                self._notes.add(f"is left out: --map names {rival!r} for it", key)

    def _spelled(self, row: Row) -> Row:
        step, values = row
        spelled = self._respelled(values) if self._changed else values
        for guess in list(self._shares):
            value = spelled.get(guess, 0.0)
            if is_impossible(guess.removeprefix(MAPPED_PREFIX), value):
                self._end_guess(guess, value)
                del spelled[guess]
        self._impossible.drop_from(step, spelled)
        return step, spelled

    def _respelled(self, values: Record) -> Record:
        changed = self._changed
        if len(changed) < len(values):
            spelled = values.copy()
            for key in changed.keys() & values.keys():
                del spelled[key]
        else:
            spelled = {key: value for key, value in values.items() if key not in changed}
        for key, spelling in changed.items():
            if spelling is not None and key in values:
                spelled[spelling] = values[key]
        return spelled


def _rank(key: str) -> tuple[int, ...]:
    meaning = meaning_of(key)
    return meaning.rank if meaning else ()


def _few(keys: Iterable[str]) -> str:
    some = sorted(key[:60] for key in keys)
    return ", ".join(some[:_NUM_KEYS_LISTED]) + (", ..." if len(some) > _NUM_KEYS_LISTED else "")


def _named_for_the_same(
    native: Native | None, named_keys: Iterable[tuple[Native | None, str]]
) -> str | None:
    """The key that the user named for the series of this one."""
    if native is None:
        return None
    return next(
        (key for other, key in named_keys if other and _place(other) == _place(native)), None
    )


def _place(native: Native) -> tuple[str, dict[str, str]]:
    return native.metric, dict(native.labels)

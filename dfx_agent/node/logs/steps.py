"""Assigns records to steps; reports of one step that arrive in parts become one row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise

from dfx_agent.catalogue.native.meaning import meaning_of, words_of
from dfx_agent.node.logs.run import MAX_KEYS, Notes, Record, Row
from dfx_agent.node.logs.step_rows import EpochOffsets, StepMerger, is_clock
from dfx_agent.node.logs.step_window import StepWindow
from dfx_agent.node.logs.values import step_of

# keys that hold the step, best first: trackers count their own calls in "_step"
STEP_KEYS = (
    "step",
    "global_step",
    "training/global_step",
    "train/global_step",
    "trainer/global_step",
    "system/step",
    "system/global_step",
    "rollout/step",
    "iteration",
    "current_steps",  # LLaMA-Factory
    "progress/batch",
    "_step",
)

# so many records are looked at to learn which key counts the steps
_NUM_LEARNED = 64
# the last words of keys that may count the steps, best first
_STEP_WORDS = (
    "step", "steps", "iteration", "iterations", "iter", "it", "update", "updates", "round",
    "rounds", "batch", "episode", "episodes", "timesteps", "epoch", "epochs", "index", "idx", "t",
)  # fmt: skip
# a key that rises by the same amount in so many of its changes counts something
_SHARE_RISING = 0.75
# of a step that is logged in parts at most so many records have the same number
_MAX_PARTS = 8
# fewer loops of the same length may be attempts
_LEAST_LOOPS = 8
# fewer values can rise by chance
_LEAST_VALUES, _LEAST_UNNAMED_VALUES = 2, 8
# more values than that are not held to sort their rows
_MAX_VALUES_SORTED = 300_000


def with_steps(
    records: Iterable[Record], notes: Notes, step_key: str | None = None
) -> Iterator[Row]:
    """Rows in the order of the records; ``step_key`` is the user's own word for the step.

    A record without the key that the others have joins the row before it when it carries a
    tracker's own count, and is left out otherwise. Without any such key records are counted from 0.
    """
    waiting = iter(records)
    first = list(islice(waiting, _NUM_LEARNED))
    if step_key and first and not any(step_key in record for record in first):
        notes.add(f"is named by --map, and none of the first {len(first)} records has it", step_key)
    key = step_key or _step_key(first, notes)
    if key is None and first:
        notes.is_counted = True
        notes.add("records without a step: counted from 0")
    dropped = tuple(name for name in STEP_KEYS if name != key)
    numbered = _numbered(chain(first, waiting), key, dropped, notes)
    if key is not None and _is_random([step_of(record.get(key)) for record in first]):
        return _sorted(numbered, key, notes)
    return _merged(numbered, notes)


def step_name(name: str) -> str:
    """The spelling of STEP_KEYS for a name, if it is one of them: trackers write Step."""
    lowered = name.strip().lower()
    return lowered if lowered in STEP_KEYS else name


def is_step_name(key: str) -> bool:
    """Whether this is a name for the number of a step."""
    return key in STEP_KEYS or _place_of_name(key) < len(_STEP_WORDS)


def _numbered(
    records: Iterable[Record], key: str | None, dropped: tuple[str, ...], notes: Notes
) -> Iterator[Row]:
    """Each record with its step; those without one are left out."""
    latest: int | None = None
    for i, record in enumerate(records):
        step = i if key is None else step_of(record.pop(key, None))
        has_other_count = _drop(record, dropped)
        if step is None and has_other_count:
            step = latest
        if step is None:
            add_note = notes.left_out if any(map(meaning_of, record)) else notes.add
            add_note("has no step: left out", f"record {i}")
            continue
        if len(record) > MAX_KEYS:
            _keep_to_limit(record, notes)
        latest = step
        yield step, record


def _merged(rows: Iterable[Row], notes: Notes) -> Iterator[Row]:
    """One row for each step of an attempt."""
    merger, epochs = StepMerger(notes), EpochOffsets(notes)
    for step, record in rows:
        yield from merger.add(epochs.counted_on(step, record), record)
    yield from merger.rest()


def _sorted(rows: Iterable[Row], key: str, notes: Notes) -> Iterator[Row]:
    """Rows of a file that somebody shuffled, as far as their values can be held."""
    notes.add(f"is in random order: the rows are sorted by {key}", "the step")
    window = StepWindow(notes, _MAX_VALUES_SORTED, _MAX_VALUES_SORTED)
    for step, record in rows:
        yield from map(_row_of, window.add(step, record))
    yield from map(_row_of, window.rest())


def _row_of(record: Record) -> Row:
    return int(record.pop("step")), record


def _is_random(steps: Sequence[int | None]) -> bool:
    """Whether steps fall back again and again and hardly any comes twice."""
    found = [step for step in steps if step is not None]
    num_falls = sum(after < before for before, after in pairwise(found))
    return num_falls >= 4 and num_falls * 4 >= len(found) and len(set(found)) * 10 >= len(found) * 9


def _step_key(records: list[Record], notes: Notes) -> str | None:
    """A key that is known to count steps and does so; else one that behaves like a step."""
    step_key = _most_used(records)
    if step_key is not None and not _never_rises(records, step_key):
        key = _that_does_not_cycle(records, step_key)
        if not _is_inner_loop(_values(records, key)):
            return key
    found = _by_behaviour(records, step_key)
    if step_key is not None and found is None and len(records) == 1:
        return step_key
    if step_key is not None:
        what = "never rises" if _never_rises(records, step_key) else "begins again every few rows"
        notes.add(f"{what}: not read as the step", step_key)
    if found is not None:
        notes.guessed["step"] = found
    return found


def _most_used(records: list[Record]) -> str | None:
    """The best key that at least half of the records have; else the one that most have."""
    counts = {
        key: sum(step_of(record.get(key)) is not None for record in records) for key in STEP_KEYS
    }
    often = next((key for key in STEP_KEYS if counts[key] * 2 >= len(records) > 0), None)
    most = max(STEP_KEYS, key=counts.__getitem__)
    return often or (most if counts[most] else None)


def _values(records: list[Record], key: str) -> list[int]:
    return [step for record in records if (step := step_of(record.get(key))) is not None]


def _never_rises(records: list[Record], key: str) -> bool:
    """Whether the key has a single value although other values show several steps."""
    values = _values(records, key)
    return len(values) > _MAX_PARTS and len(set(values)) == 1


def _that_does_not_cycle(records: list[Record], step_key: str) -> str:
    """If the step restarts in each epoch, another key that rises further replaces it."""
    if _num_falls(_values(records, step_key)) < 2 or _is_random(_values(records, step_key)):
        return step_key
    others = (key for key in STEP_KEYS if key not in {step_key, "_step"})
    num = len(_values(records, step_key))
    rising = (
        key for key in others
        if len(values := _values(records, key)) >= num and not _num_falls(values)
        and len(set(values)) * _MAX_PARTS > num
    )  # fmt: skip
    return next(rising, step_key)


def _is_inner_loop(values: list[int]) -> bool:
    """Whether the values count the few updates within each step: 1, 2, 3, 4, 1, 2, 3, 4."""
    begins = [i for i, (before, after) in enumerate(pairwise(values)) if after < before]
    lengths = {after - before for before, after in pairwise(begins)}
    first = {values[i + 1] for i in begins}
    return len(begins) >= _LEAST_LOOPS and len(lengths) == 1 and first == {values[0]}


def _num_falls(values: list[int]) -> int:
    return sum(after < before for before, after in pairwise(values))


def _by_behaviour(records: list[Record], step_key: str | None) -> str | None:
    """The best of the keys that rise by a constant amount; a name that says so goes before."""
    keys = dict.fromkeys(
        key
        for record in records
        for key in record
        if key != step_key and (is_step_name(key) or not is_clock(key))
    )
    ranked = []
    for key in keys:
        place = _place_of_name(key)
        values = _values(records, key)
        is_often = len(values) * 2 >= len(records)
        if is_often and _counts(values, is_named=place < len(_STEP_WORDS)):
            ranked.append((place, -len(set(values)), len(key), key))
    return min(ranked)[-1] if ranked else None


def _place_of_name(key: str) -> int:
    words = words_of(key)
    last = words[-1] if words else ""
    return _STEP_WORDS.index(last) if last in _STEP_WORDS else len(_STEP_WORDS)


def _counts(values: list[int], *, is_named: bool) -> bool:
    """Whether these are the numbers of steps: they rise, mostly by the same amount."""
    if len(values) < (_LEAST_VALUES if is_named else _LEAST_UNNAMED_VALUES):
        return False
    changes = [after - before for before, after in pairwise(values) if after != before]
    if len(changes) * _MAX_PARTS < len(values) - 1 or not changes:
        return False
    amount, num = Counter(changes).most_common(1)[0]
    if is_named:
        return sum(change > 0 for change in changes) * 2 > len(changes) or _is_random(values)
    return amount > 0 and num >= _SHARE_RISING * len(changes)


def _drop(record: Record, names: tuple[str, ...]) -> bool:
    """Remove all of these keys. Returns whether the record had any."""
    found = False
    for name in names:
        if name in record:
            del record[name]
            found = True
    return found


def _keep_to_limit(record: Record, notes: Notes) -> None:
    for key in list(record)[MAX_KEYS:]:
        del record[key]
    notes.add(f"records have more than {MAX_KEYS:,} keys: the rest of them is left out")

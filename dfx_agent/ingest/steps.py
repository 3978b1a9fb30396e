"""Which step a record belongs to; reports of one step that come in parts become one row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

from dfx_agent.ingest.run import MAX_KEYS, Notes, Record, Row
from dfx_agent.ingest.values import step_of

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


def with_steps(
    records: Iterable[Record], notes: Notes, step_key: str | None = None
) -> Iterator[Row]:
    """Rows in the order of the records; ``step_key`` is the user's own word for the step.

    A record without the key that the others have joins the row before it when it carries a
    tracker's own count, and is left out otherwise. Without any such key records are counted from 0.
    """
    waiting = iter(records)
    first = list(islice(waiting, _NUM_LEARNED))
    key = step_key or _most_used(first)
    if key is None and first:
        notes.add("records without a step: counted from 0")
    dropped = tuple(name for name in STEP_KEYS if name != key)
    newest: Row | None = None
    for i, record in enumerate(chain(first, waiting)):
        step = i if key is None else step_of(record.pop(key, None))
        has_other_count = _drop(record, dropped)
        if step is None and has_other_count and newest is not None:
            step = newest[0]
        if step is None:
            notes.left_out("has no step: left out", f"record {i}")
            continue
        _keep_to_limit(record, notes)
        if newest is not None and newest[0] == step:
            newest[1].update(record)
            continue
        if newest is not None:
            yield newest
        newest = step, record
    if newest is not None:
        yield newest


def step_name(name: str) -> str:
    """A name as STEP_KEYS spell it, when it is one of them: trackers write Step."""
    lowered = name.strip().lower()
    return lowered if lowered in STEP_KEYS else name


def _most_used(records: list[Record]) -> str | None:
    """The best key that at least half of the records have; else the one that most have."""
    counts = {
        key: sum(step_of(record.get(key)) is not None for record in records) for key in STEP_KEYS
    }
    often = next((key for key in STEP_KEYS if counts[key] * 2 >= len(records) > 0), None)
    most = max(STEP_KEYS, key=counts.__getitem__)
    return often or (most if counts[most] else None)


def _drop(record: Record, names: tuple[str, ...]) -> bool:
    """Whether one of them was there; all are taken out."""
    found = [record.pop(name, None) for name in names]
    return found.count(None) < len(found)


def _keep_to_limit(record: Record, notes: Notes) -> None:
    if len(record) > MAX_KEYS:
        for key in list(record)[MAX_KEYS:]:
            del record[key]
        notes.add(f"records have more than {MAX_KEYS:,} keys: the rest of them is left out")

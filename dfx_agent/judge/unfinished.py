"""The collectives that hold a job up, by the flight recorders of its ranks.

Of each process group the first number that some rank has issued and that has not finished: who has
issued it, who has not, and whether all of them issued the same thing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from dfx_agent.base.text import age_text
from dfx_agent.facts.flight import Entry, FlightRecord, GroupKey, RecordedGroup

RanksText = Callable[[Iterable[str]], str]

_MAX_LINES, _MAX_KINDS = 4, 4
# of these every rank must give as much as the others; gathers and all_to_all may be uneven
_EQUAL_SIZES = frozenset({"all_reduce", "broadcast", "reduce"})
_EQUAL_DTYPES = frozenset({"all_reduce", "reduce"})


@dataclass(frozen=True)
class Unfinished:
    """Where a group stands, by labels of ranks.

    ``issued``: what they recorded under ``sequence``, None where that is not one entry.
    ``missing``: those that have not come so far, and what they recorded last, None for nothing.
    """

    group: str
    sequence: int
    issued: Mapping[str, Entry | None]
    missing: Mapping[str, Entry | None]

    @property
    def kinds(self) -> dict[tuple[object, ...], list[str]]:
        """Labels by what they issued; more than one kind cannot match."""
        found: dict[tuple[object, ...], list[str]] = {}
        for label, entry in self.issued.items():
            if entry is not None:
                found.setdefault(_kind(entry), []).append(label)
        return found

    @property
    def begin_ns(self) -> int:
        """Unix time at which the first rank came that still waits."""
        waiting = [e.created_ns for e in self.issued.values() if e and not e.is_finished]
        return min(waiting)

    def places(self) -> list[tuple[list[str], str]]:
        """As in (["0", "2"], "all_reduce@0 #42 [8] float32"), the largest first."""
        named = [(labels, self._named(self.issued[labels[0]])) for labels in self.kinds.values()]
        return sorted(named, key=lambda place: len(place[0]), reverse=True)

    def _named(self, entry: Entry | None) -> str:
        if entry is None:
            return "nothing on record"
        return f"{entry.operation}@{self.group} #{entry.sequence}{entry.tensors}"

    def last_of(self, label: str, now_seconds: float) -> str:
        """What a rank did last that has not come to this number."""
        entry = self.missing[label]
        issued = (
            ""
            if entry is None
            else f", issued {age_text(now_seconds - entry.created_ns / 1e9)} ago"
        )
        return f"{self._named(entry)}{issued}"


def first_unfinished(records: Mapping[str, FlightRecord]) -> list[Unfinished]:
    """One for each group in which something is unfinished, by labels of ranks; oldest first."""
    if not any(record.is_waiting for record in records.values()):
        return []
    keys = dict.fromkeys(key for record in records.values() for key in record.groups)
    found = [unfinished for key in keys if (unfinished := _of_group(key, records))]
    return sorted(found, key=lambda unfinished: unfinished.begin_ns)


def unfinished_lines(
    records: Mapping[str, FlightRecord], ranks_text: RanksText, now_seconds: float
) -> list[str]:
    """Who has issued what holds the job up, and who has not; ``now_seconds`` is Unix time."""
    lines = []
    for unfinished in first_unfinished(records)[:_MAX_LINES]:
        ago = age_text(now_seconds - unfinished.begin_ns / 1e9)
        issued = "; ".join(
            f"{where} issued by {ranks_text(labels)}"
            for labels, where in unfinished.places()[:_MAX_KINDS]
        )
        last: dict[str, list[str]] = {}
        for label in unfinished.missing:
            last.setdefault(unfinished.last_of(label, now_seconds), []).append(label)
        absent = [
            f"not by {ranks_text(labels)}, whose last is {what}"
            for what, labels in list(last.items())[:_MAX_KINDS]
        ]
        lines.append("; ".join([f"flight recorder: {issued}, first {ago} ago", *absent]))
    return lines


def _of_group(key: GroupKey, records: Mapping[str, FlightRecord]) -> Unfinished | None:
    held = {label: r.groups[key] for label, r in records.items() if key in r.groups}
    if len({records[label].rank for label in held}) < len(held):
        return None  # two jobs that look like one group
    entries = {label: _collectives(group) for label, group in held.items()}
    waiting = [e.sequence for rows in entries.values() for e in rows if not e.is_finished]
    if not waiting:
        return None
    sequence = min(waiting)
    issued: dict[str, Entry | None] = {}
    missing: dict[str, Entry | None] = {}
    for label, rows in entries.items():
        newest = max(rows, key=lambda entry: entry.sequence, default=None)
        if newest is None or newest.sequence < sequence:
            missing[label] = newest
            continue
        same = [entry for entry in rows if entry.sequence == sequence]
        # a coalesced call is several entries under one number: who knows which one is meant
        issued[label] = same[0] if len(same) == 1 else None
    members = next((group.members for group in held.values()), None) or ()
    missing |= {
        label: None for label, r in records.items() if label not in held and r.rank in members
    }
    if all(entry is None or entry.is_finished for entry in issued.values()):
        return None
    return Unfinished(key.name, sequence, issued, missing)


def _collectives(group: RecordedGroup) -> list[Entry]:
    return [entry for entry in group.entries if not entry.is_p2p]


def _kind(entry: Entry) -> tuple[object, ...]:
    return (
        entry.operation,
        entry.num_elements if entry.operation in _EQUAL_SIZES else None,
        entry.dtypes if entry.operation in _EQUAL_DTYPES else None,
    )

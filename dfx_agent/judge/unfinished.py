"""Finds collectives that do not finish, from the flight recorders of the ranks.

For each process group: the lowest sequence number that some rank has issued and that has not
finished. The result says which ranks have issued it, which have not, and whether all ranks issued
the same operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from dfx_agent.base.text import age_text
from dfx_agent.facts.flight import FlightEntry, FlightRecord, GroupKey, RecordedGroup

RanksText = Callable[[Iterable[str]], str]

_MAX_LINES, _MAX_KINDS = 4, 4
# all ranks must pass equal sizes to these operations; gathers and all_to_all may be uneven
_EQUAL_SIZES = frozenset({"all_reduce", "broadcast", "reduce"})
_EQUAL_DTYPES = frozenset({"all_reduce", "reduce"})


@dataclass(frozen=True)
class Unfinished:
    """A collective of one process group that has not finished. Ranks are given by their labels."""

    group: str
    sequence: int
    issued: Mapping[str, FlightEntry | None]
    """Ranks that issued it, with their entry; None if there is not exactly one entry."""
    missing: Mapping[str, FlightEntry | None]
    """Ranks that have not issued it, with their last entry; None if there is none."""

    @property
    def kinds(self) -> dict[tuple[object, ...], list[str]]:
        """Labels of ranks by what they issued. Two or more kinds never match."""
        labels_by_kind: dict[tuple[object, ...], list[str]] = {}
        for label, entry in self.issued.items():
            if entry is not None:
                labels_by_kind.setdefault(_kind(entry), []).append(label)
        return labels_by_kind

    @property
    def begin_ns(self) -> int:
        """Unix time at which the first rank that still waits issued it."""
        waiting = [
            entry.created_ns for entry in self.issued.values() if entry and not entry.is_finished
        ]
        return min(waiting)

    def calls(self) -> list[tuple[list[str], str]]:
        """(labels, call), as in (["0", "2"], "all_reduce@0 #42 [8] float32"); most ranks first."""
        named = [(labels, self._named(self.issued[labels[0]])) for labels in self.kinds.values()]
        return sorted(named, key=lambda call: len(call[0]), reverse=True)

    def _named(self, entry: FlightEntry | None) -> str:
        if entry is None:
            return "nothing on record"
        return f"{entry.operation}@{self.group} #{entry.sequence}{entry.tensors}"

    def last_call_text(self, label: str, now_seconds: float) -> str:
        """The last call of a rank that has not issued this collective."""
        entry = self.missing[label]
        issued = (
            ""
            if entry is None
            else f", issued {age_text(now_seconds - entry.created_ns / 1e9)} ago"
        )
        return f"{self._named(entry)}{issued}"


def first_unfinished(records: Mapping[str, FlightRecord]) -> list[Unfinished]:
    """The first unfinished collective of each group, oldest first; ``records`` by label of rank."""
    if not any(record.is_waiting for record in records.values()):
        return []
    keys = dict.fromkeys(key for record in records.values() for key in record.groups)
    found = [unfinished for key in keys if (unfinished := _of_group(key, records))]
    return sorted(found, key=lambda unfinished: unfinished.begin_ns)


def unfinished_lines(
    records: Mapping[str, FlightRecord], ranks_text: RanksText, now_seconds: float
) -> list[str]:
    """Evidence: which ranks have issued the unfinished collectives. ``now_seconds``: Unix time."""
    lines = []
    for unfinished in first_unfinished(records)[:_MAX_LINES]:
        ago = age_text(now_seconds - unfinished.begin_ns / 1e9)
        issued = "; ".join(
            f"{call} issued by {ranks_text(labels)}"
            for labels, call in unfinished.calls()[:_MAX_KINDS]
        )
        last: dict[str, list[str]] = {}
        for label in unfinished.missing:
            last.setdefault(unfinished.last_call_text(label, now_seconds), []).append(label)
        absent = [
            f"not by {ranks_text(labels)}, last call {call}"
            for call, labels in list(last.items())[:_MAX_KINDS]
        ]
        lines.append("; ".join([f"flight recorder: {issued}, first {ago} ago", *absent]))
    return lines


def _of_group(key: GroupKey, records: Mapping[str, FlightRecord]) -> Unfinished | None:
    group_by_label = {
        label: record.groups[key] for label, record in records.items() if key in record.groups
    }
    if len({records[label].rank for label in group_by_label}) < len(group_by_label):
        return None  # two jobs that look like one group
    entries = {label: _collectives(group) for label, group in group_by_label.items()}
    waiting = [
        entry.sequence for rows in entries.values() for entry in rows if not entry.is_finished
    ]
    if not waiting:
        return None
    sequence = min(waiting)
    issued: dict[str, FlightEntry | None] = {}
    missing: dict[str, FlightEntry | None] = {}
    for label, rows in entries.items():
        latest = max(rows, key=lambda entry: entry.sequence, default=None)
        if latest is None or latest.sequence < sequence:
            missing[label] = latest
            continue
        same = [entry for entry in rows if entry.sequence == sequence]
        # a coalesced call has several entries with one number, so the entry is unknown
        issued[label] = same[0] if len(same) == 1 else None
    members = next((group.members for group in group_by_label.values()), None) or ()
    missing |= {
        label: None
        for label, record in records.items()
        if label not in group_by_label and record.rank in members
    }
    if all(entry is None or entry.is_finished for entry in issued.values()):
        return None
    return Unfinished(key.name, sequence, issued, missing)


def _collectives(group: RecordedGroup) -> list[FlightEntry]:
    return [entry for entry in group.entries if not entry.is_p2p]


def _kind(entry: FlightEntry) -> tuple[object, ...]:
    return (
        entry.operation,
        entry.num_elements if entry.operation in _EQUAL_SIZES else None,
        entry.dtypes if entry.operation in _EQUAL_DTYPES else None,
    )

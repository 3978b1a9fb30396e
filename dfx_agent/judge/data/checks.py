"""Compares the batches at two worker boundaries of one step.

Checksums of several ranks can be added (see shim/ledger.py). Therefore a driver that holds all
samples can be compared with the ranks that receive them. Ranks with the same checksums and the same
ids are replicas (tensor parallel, broadcast) and count once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dfx_agent.facts.ledger import Fields
from dfx_agent.wire.records import LEDGER_MODULUS

Rank = tuple[str, str]  # role, label

_HASHES = frozenset({"multiset", "values", "aligned"})
_DIGESTS = frozenset({"schema", "shapes", "order"})
_EXTREMES: Mapping[str, Callable[[float, float], float]] = {
    "smallest_group": min,
    "largest_group": max,
}


class Difference(NamedTuple):
    """A difference between two batches that should be equal."""

    kind: str
    """Stable word for the kind of difference; cause of the verdict."""
    column: str
    """Column of the batch, "" if the difference is about all columns."""
    text: str


@dataclass
class Crossed:
    """The batches of one rank at one boundary in one step, merged."""

    begin_ns: int
    fields: dict[tuple[str, str], float] = field(default_factory=dict)
    num_crossings: int = 0

    def add_batch(self, fields: Fields) -> None:
        """Merge one more batch."""
        self.num_crossings += 1
        merge_into(self.fields, fields)


def merge_into(merged: dict[tuple[str, str], float], fields: Fields) -> None:
    """Add the samples of ``fields`` to those of ``merged``."""
    if not merged:
        merged.update(fields)
        return
    for key, value in fields.items():
        merged[key] = _merged(key[0], merged[key], value) if key in merged else value


def total(ranks: Iterable[Crossed]) -> dict[tuple[str, str], float]:
    """The batches of all ranks, merged; replicas count once."""
    merged: dict[tuple[str, str], float] = {}
    seen: set[frozenset[tuple[tuple[str, str], float]]] = set()
    for crossed in ranks:
        shown = frozenset(crossed.fields.items())
        has_ids = any(name == "multiset" for name, _ in crossed.fields)
        if not (has_ids and shown in seen):
            merge_into(merged, crossed.fields)
        seen.add(shown)
    return merged


def differences(before: Fields, after: Fields) -> list[Difference]:
    """What changed between two boundaries. Only a cause is returned, not its consequences."""
    if before.get(("num_unread", "")) or after.get(("num_unread", "")):
        return []
    was, now = before.get(("num_rows", ""), 0.0), after.get(("num_rows", ""), 0.0)
    if was != now:
        return [Difference("samples", "", f"{now:.0f} samples instead of {was:.0f}")]
    common = before.keys() & after.keys()
    changed = sorted(key for key in common if before[key] != after[key])
    ids = [column for name, column in changed if name == "multiset"]
    if ids:
        return [Difference("ids", column, f"{column} are not the same") for column in ids]
    masks = [
        Difference(
            "mask", column, f"{column} counts {after[name, column]:.0f} tokens instead of "
            f"{before[name, column]:.0f}",
        )
        for name, column in changed
        if name == "mask_sum"
    ]  # fmt: skip
    same_ids = {c for name, c in before if name == "order"} == {
        c for name, c in after if name == "order"
    }
    moved = [
        Difference("moved", column, f"{column} belong to other samples")
        for name, column in changed
        if name == "aligned" and same_ids and ("values", column) not in changed
    ]
    return masks + moved


def compared(
    before: Mapping[Rank, Crossed], after: Mapping[Rank, Crossed], *, is_whole: bool
) -> list[tuple[Difference, tuple[Rank, ...]]]:
    """(difference, ranks that have it); no ranks if samples move between ranks.

    ``is_whole``: whether all ranks of the job are observed. If not, each rank is compared with
    itself, and a difference counts only if most ranks have none.
    """
    if is_whole:
        found = differences(total(before.values()), total(after.values()))
        by_rank = _by_rank(before, after) if found else {}
    else:
        by_rank = _by_rank(before, after)
        found = _common(by_rank)
    rows = [(difference, _ranks_with(difference, by_rank)) for difference in found]
    return [*rows, *_reshaped(before, after)]


def _by_rank(
    before: Mapping[Rank, Crossed], after: Mapping[Rank, Crossed]
) -> dict[Rank, list[Difference]]:
    """Differences of each rank with itself; empty if some ranks are at one boundary only."""
    if before.keys() != after.keys():
        return {}
    return {rank: differences(was.fields, after[rank].fields) for rank, was in before.items()}


def _common(by_rank: Mapping[Rank, list[Difference]]) -> list[Difference]:
    """Differences of some ranks, if most ranks have none."""
    wrong = [found for found in by_rank.values() if found]
    if len(wrong) * 2 >= len(by_rank):
        return []
    return list(
        {
            (difference.kind, difference.column): difference
            for found in wrong
            for difference in found
        }.values()
    )


def _reshaped(
    before: Mapping[Rank, Crossed], after: Mapping[Rank, Crossed]
) -> list[tuple[Difference, tuple[Rank, ...]]]:
    """Ranks whose batch has the same columns and samples in other shapes (truncated or padded).

    Only single batches are compared, because checksums of shapes cannot be added.
    """
    same = (("schema", ""), ("num_rows", ""))
    ranks = []
    for rank in before.keys() & after.keys():
        was, now = before[rank], after[rank]
        orders = {key for key in was.fields.keys() | now.fields.keys() if key[0] == "order"}
        is_same = all(was.fields.get(key) == now.fields.get(key) for key in (*same, *orders))
        if was.num_crossings == now.num_crossings == 1 and is_same:
            shapes = was.fields.get(("shapes", "")), now.fields.get(("shapes", ""))
            if None not in shapes and shapes[0] != shapes[1]:
                ranks.append(rank)
    text = "the same columns and samples have other shapes"
    return [(Difference("shapes", "", text), tuple(sorted(ranks)))] if ranks else []


def wrong_at_boundary(
    ranks: Mapping[Rank, Crossed], seen: set[tuple[Rank, str]]
) -> list[tuple[Difference, tuple[Rank, ...]]]:
    """Faults at one boundary: NaN or Inf that is new here, wrong lengths, different columns.

    ``seen``: (rank, column) that were not finite at an earlier boundary of the step; is extended.
    """
    found: dict[tuple[str, str], list[tuple[Rank, float]]] = {}
    for rank, crossed in ranks.items():
        for (name, column), value in crossed.fields.items():
            if name == "num_misaligned" and value:
                found.setdefault(("lengths", column), []).append((rank, value))
            if name == "num_nonfinite" and value and (rank, column) not in seen:
                seen.add((rank, column))
                found.setdefault(("nonfinite", column), []).append((rank, value))
    words = {
        "lengths": "{} has a length that does not fit the mask in {:.0f} samples",
        "nonfinite": "{} holds NaN or Inf in {:.0f} samples",
    }
    rows = [
        (
            Difference(
                kind,
                column,
                words[kind].format(column, sum(num_samples for _, num_samples in hits)),
            ),
            tuple(rank for rank, _ in hits),
        )
        for (kind, column), hits in found.items()
    ]
    return [*rows, *_odd_columns(ranks)]


def _odd_columns(
    ranks: Mapping[Rank, Crossed],
) -> list[tuple[Difference, tuple[Rank, ...]]]:
    """Ranks of one role whose columns or types differ from those of most ranks."""
    odd: list[Rank] = []
    has_odd = False
    for role in {role for role, _ in ranks}:
        schemas = {
            rank: crossed.fields.get(("schema", ""))
            for rank, crossed in ranks.items()
            if rank[0] == role and crossed.num_crossings == 1
        }
        numbers = Counter(schemas.values())
        has_odd |= len(numbers) > 1
        usual, num_usual = numbers.most_common(1)[0] if numbers else (None, 0)
        if 2 * num_usual > len(schemas):
            odd += [rank for rank, schema in schemas.items() if schema != usual]
    text = "columns or their types are not those of the other ranks"
    return [(Difference("schema", "", text), tuple(sorted(odd)))] if has_odd else []


def _ranks_with(
    difference: Difference, by_rank: Mapping[Rank, list[Difference]]
) -> tuple[Rank, ...]:
    key = difference.kind, difference.column
    ranks = [
        rank
        for rank, found in by_rank.items()
        if key in {(other.kind, other.column) for other in found}
    ]
    return tuple(sorted(ranks)) if len(ranks) < len(by_rank) or len(by_rank) == 1 else ()


def _merged(name: str, one: float, other: float) -> float:
    if name in _HASHES:
        return (int(one) + int(other)) % LEDGER_MODULUS  # the sum need not fit in a float64
    if name in _DIGESTS:
        return one if one == other else float(hash((one, other)) % LEDGER_MODULUS)
    if name in _EXTREMES:
        return _EXTREMES[name](one, other)
    return one + other

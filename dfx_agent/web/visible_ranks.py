"""Selects the ranks of a run that are sent in full, because a page draws a bounded number of them.

Small jobs: all ranks. Large jobs: the culprits of incidents, requested ranks, peers of the
culprits, then the first ranks of every role.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain, islice, zip_longest

from dfx_agent.snapshot import RankRow, RunRow

MAX_WHOLE_JOB = 16
NUM_OF_LARGE_JOB = 16
_MAX_CULPRITS = 4
_OF_DATA = frozenset({"data", "context"})  # ranks along these have the same parts of the model
_MAX_GROUP = 16  # a group of more is everybody, and names no peers

RankKey = tuple[str, str]  # role, rank


def key_of(row: RankRow) -> RankKey:
    return row.role, row.rank


def culprits(run: RunRow) -> dict[RankKey, str]:
    """Rank -> severity of the worst incident that blames it, worst first."""
    blamed: dict[RankKey, str] = {}
    for severity in ("critical", "warning"):
        for incident in run.incidents:
            if incident.severity == severity:
                for rank in incident.ranks:
                    blamed.setdefault((incident.role, rank), severity)
    return blamed


def blames(run: RunRow) -> dict[RankKey, str]:
    """Like ``culprits``, with "peer" for the peers of the first culprits."""
    found = culprits(run)
    rows = {key_of(row): row for row in run.ranks if found}
    for key in list(found)[:_MAX_CULPRITS]:
        for row in peers(run, rows[key]) if key in rows else ():
            found.setdefault(key_of(row), "peer")
    return found


def shown_ranks(run: RunRow, asked: Collection[RankKey] = ()) -> tuple[RankRow, ...]:
    """For a large job at most 16, plus those that were ``asked`` for; culprits first."""
    if len(run.ranks) <= MAX_WHOLE_JOB:
        return run.ranks
    rows = {key_of(row): row for row in run.ranks}
    guilty = [rows[key] for key in culprits(run) if key in rows][:_MAX_CULPRITS]
    opened = [rows[key] for key in asked if key in rows]
    rest = chain(*(peers(run, row) for row in guilty), _first_of_roles(run))
    wanted = {key_of(row): row for row in chain(guilty, opened, rest)}
    return tuple(islice(wanted.values(), NUM_OF_LARGE_JOB + len(opened)))


def peers(run: RunRow, culprit: RankRow) -> list[RankRow]:
    """Ranks that do the same work, by the layout of the job.

    If the layout is unknown or includes all ranks: the smallest process group if it is small, else
    the ranks of its role on its node.
    """
    same_work = _same_part_of_model(run, culprit)
    if 1 < len(same_work) <= _MAX_GROUP:
        return same_work
    sizes: dict[str, list[RankRow]] = {row.group: [] for row in culprit.groups}
    for row in run.ranks:
        for group in row.groups if row.role == culprit.role else ():
            if group.group in sizes:
                sizes[group.group].append(row)
    smallest = min((g for g in sizes.values() if len(g) > 1), key=len, default=[])
    if smallest and len(smallest) <= _MAX_GROUP:
        return smallest
    return [row for row in run.ranks if (row.role, row.node) == (culprit.role, culprit.node)]


def _same_part_of_model(run: RunRow, culprit: RankRow) -> list[RankRow]:
    """Ranks of its role with the same part of the model: equal on all axes except data."""
    part = _part_of_model(culprit)
    if not culprit.place:
        return []
    return [r for r in run.ranks if r.role == culprit.role and _part_of_model(r) == part]


def _part_of_model(row: RankRow) -> dict[str, int]:
    return {axis: number for axis, number in row.place.items() if axis not in _OF_DATA}


def _first_of_roles(run: RunRow) -> Iterator[RankRow]:
    """The first rank of every role, then the second of every role, and so on."""
    by_role: dict[str, list[RankRow]] = {}
    for row in run.ranks:
        by_role.setdefault(row.role, []).append(row)
    return filter(None, chain.from_iterable(zip_longest(*by_role.values())))

"""Contract 2: collectives and the groups that make them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """Host time of one rank in the collectives of one group and stage, since it was first seen.

    ``peers_seconds`` is waiting for ranks that had not arrived, ``transfer_seconds`` the rest of
    the blocked time after the last had; ``unmatched_seconds`` was blocked too, but the other ranks'
    arrivals are not known. ``method`` is how they were told apart: "arrival" (entry times of all
    ranks on one host's clock), "duration" (longer than the shortest rank; no clock needed). Rows of
    "device" are of another kind: time that a device's stream stood, by duration, of every 16th step
    alone; they have their own number, no bytes, and are never added to the host's.
    """

    group: str
    stage: str
    method: str
    num_collectives: int
    num_bytes: float | None
    peers_seconds: float
    transfer_seconds: float
    unmatched_seconds: float


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One process group as one rank sees it.

    ``coverage_ratio`` is collectives recorded / collectives that the group counted; below 1 some
    are issued where the guest cannot see them. None before the group has moved.
    """

    group: str
    num_enqueued: int
    num_completed: int | None
    coverage_ratio: float | None

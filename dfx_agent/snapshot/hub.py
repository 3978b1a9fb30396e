"""Telling the hub of a job: how it stands on a node, and what the hub has of each node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# "lost": it does not answer; "refused": it answers that it does not take what this node tells
HubState = Literal["joining", "joined", "lost", "refused"]


@dataclass(frozen=True, slots=True)
class HubRow:
    """On a node. ``since_seconds``: Unix time at which ``state`` began; ``message``: its reason.

    ``num_lost``: documents that the hub never took. After a loss everything is told anew.
    """

    url: str
    state: HubState
    since_seconds: float
    message: str
    num_sent: int
    num_lost: int


@dataclass(frozen=True, slots=True)
class NodeRow:
    """On the hub: one node that has told something, or has tried to.

    ``heard_seconds``: when last, Unix time of the hub. ``num_missed``: documents that came after
    one that was lost, upon which everything was asked for. ``message``: why the newest refused one
    was refused, "" if none was. ``has_left``: all of its agents have said goodbye.
    ``timeline_problem``: why its agent could not be asked for a timeline, "" where it could.
    """

    node: str
    heard_seconds: float
    num_taken: int
    num_refused: int
    num_missed: int
    message: str
    has_left: bool
    timeline_problem: str = ""

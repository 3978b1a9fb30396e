"""Contract 2: what failed in the agent itself: a part of ``snapshot``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FaultPart = Literal["folder", "reading", "judgement", "rendering", "keeping", "device", "engines"]


@dataclass(frozen=True, slots=True)
class FaultRow:
    """Something of one run (``run`` "": of the agent) that failed when it was last tried.

    ``what`` names it, as in "hang (trainer)" or "rank 3 (trainer)". It has failed ``num_times`` in
    a row, since ``since_seconds`` (Unix time). ``is_blind``: for so long that what is shown of it
    says nothing about now.
    """

    part: FaultPart
    run: str
    what: str
    message: str
    since_seconds: float
    num_times: int
    is_blind: bool


@dataclass(frozen=True, slots=True)
class Blindness:
    """Since when (Unix time) something has not been read or judged, and what, in one line."""

    since_seconds: float
    reason: str

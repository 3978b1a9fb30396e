"""Batches that crossed a boundary of the pipeline, as each rank showed them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dfx_agent.facts.pairs import Pairs
from dfx_agent.facts.seat import ProcessId

Fields = Pairs[tuple[str, str], float]  # (field, column) -> value


@dataclass(frozen=True, slots=True)
class Crossing:
    """One batch of one rank at one boundary; ``step`` is None outside any step.

    ``time_ns``: on its host's monotonic clock. ``fields`` are finite.
    """

    boundary: str
    step: int | None
    time_ns: int
    fields: Fields


@dataclass(frozen=True, slots=True)
class LedgerNews:
    """What one reading of a process brought; ``num_lost``: its records that were lost by then.

    ``steps``: of all records that came, in their order, None outside any step; a crossing may be
    whole only at the next reading. ``given_up``: steps of crossings that will never be whole.
    """

    process: ProcessId
    num_lost: int
    steps: tuple[int | None, ...] = ()
    crossings: tuple[Crossing, ...] = ()
    given_up: tuple[int | None, ...] = ()


class Progress(NamedTuple):
    """How far a process is that has shown batches; ``is_present``: it is still of the run.

    ``told_step``: the step that it said it is in, by its newest record.
    """

    process: ProcessId
    told_step: int | None
    is_living: bool
    is_present: bool = True

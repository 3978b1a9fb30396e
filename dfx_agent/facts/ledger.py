"""Batches that crossed a boundary of the pipeline, as each rank showed them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, PlainSerializer

from dfx_agent.facts.pairs import KEYS, VALUES, Pairs
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


def _differing(crossings: Iterable[Crossing]) -> list[dict[str, Any]]:
    """What has not changed since a crossing before is null: most of a batch stays as it is.

    A zero is told: it may be a negative one.
    """
    known: dict[tuple[str, str], float] = {}
    told = []
    for each in crossings:
        values = [
            None if value and known.get(key) == value else value
            for key, value in each.fields.items()
        ]
        known.update(each.fields)
        fields = {KEYS: list(each.fields), VALUES: values}
        told.append(
            {
                "boundary": each.boundary,
                "step": each.step,
                "time_ns": each.time_ns,
                "fields": fields,
            }
        )
    return told


def _whole(given: Any) -> Any:
    """Of what stood in JSON; what is no list of crossings is left to the validation."""
    known: dict[tuple[str, str], Any] = {}
    rows = given if isinstance(given, list) else []
    for each in (row for row in rows if isinstance(row, dict)):
        fields = each.get("fields")
        if isinstance(fields, dict) and fields.keys() == {KEYS, VALUES}:
            try:
                each["fields"] = _filled(fields, known)
            except (TypeError, ValueError) as error:
                raise ValueError("as many values as fields are missing") from error
    return given


def _filled(fields: dict[str, Any], known: dict[tuple[str, str], Any]) -> dict[Any, Any]:
    """By key. ``known``: of the crossings before, and now of this one."""
    told = zip(map(tuple, fields[KEYS]), fields[VALUES], strict=True)
    filled = {key: known.get(key) if value is None else value for key, value in told}
    known.update(filled)
    return filled


@dataclass(frozen=True, slots=True)
class LedgerNews:
    """What one reading of a process brought; ``num_lost``: its records that were lost by then.

    ``steps``: of all records that came, in their order, None outside any step; a crossing may be
    whole only at the next reading. ``given_up``: steps of crossings that will never be whole.
    """

    process: ProcessId
    num_lost: int
    steps: tuple[int | None, ...] = ()
    crossings: Annotated[
        tuple[Crossing, ...], PlainSerializer(_differing), BeforeValidator(_whole)
    ] = ()
    given_up: tuple[int | None, ...] = ()


class Progress(NamedTuple):
    """How far a process is that has shown batches; ``is_present``: it is still of the run.

    ``told_step``: the step that it said it is in, by its newest record.
    """

    process: ProcessId
    told_step: int | None
    is_living: bool
    is_present: bool = True

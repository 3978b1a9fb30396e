"""Batches that passed a boundary between two stages, as each rank recorded them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, PlainSerializer

from dfx_agent.facts.seat import ProcessId
from dfx_agent.snapshot.document import KEYS, VALUES, Pairs

Fields = Pairs[tuple[str, str], float]  # (field, column) -> value


@dataclass(frozen=True, slots=True)
class Crossing:
    """One batch of one rank at one boundary."""

    boundary: str
    step: int | None
    """None outside any step."""
    time_ns: int
    """On the host's monotonic clock."""
    fields: Fields
    """Finite numbers."""


def _differences(batches: Iterable[Crossing]) -> list[dict[str, Any]]:
    """Replace values that equal those of an earlier batch by null, as most of them do.

    A zero is always written, because it may be a negative one.
    """
    previous: dict[tuple[str, str], float] = {}
    rows = []
    for batch in batches:
        values = [
            None if value and previous.get(key) == value else value
            for key, value in batch.fields.items()
        ]
        previous.update(batch.fields)
        fields = {KEYS: list(batch.fields), VALUES: values}
        rows.append(
            {
                "boundary": batch.boundary,
                "step": batch.step,
                "time_ns": batch.time_ns,
                "fields": fields,
            }
        )
    return rows


def _restore(content: Any) -> Any:
    """Undo ``_differences`` in parsed JSON; the validation handles anything else."""
    previous: dict[tuple[str, str], Any] = {}
    rows = content if isinstance(content, list) else []
    for batch in (row for row in rows if isinstance(row, dict)):
        fields = batch.get("fields")
        if isinstance(fields, dict) and fields.keys() == {KEYS, VALUES}:
            try:
                batch["fields"] = _fill(fields, previous)
            except (TypeError, ValueError) as error:
                raise ValueError("as many values as fields are missing") from error
    return content


def _fill(fields: dict[str, Any], previous: dict[tuple[str, str], Any]) -> dict[Any, Any]:
    """Values by key, from this batch or an earlier one; updates ``previous``."""
    pairs = zip(map(tuple, fields[KEYS]), fields[VALUES], strict=True)
    values = {key: previous.get(key) if value is None else value for key, value in pairs}
    previous.update(values)
    return values


@dataclass(frozen=True, slots=True)
class LedgerNews:
    """New ledger records of one process, from one poll."""

    process: ProcessId
    num_lost: int
    """Records of the process that were lost so far."""
    steps: tuple[int | None, ...] = ()
    """Step of each new record, in order; None outside any step."""
    completed: Annotated[
        tuple[Crossing, ...], PlainSerializer(_differences), BeforeValidator(_restore)
    ] = ()
    """Batches that are complete now; their first records may have come with an earlier poll."""
    given_up: tuple[int | None, ...] = ()
    """Steps of batches that will never be complete."""


class Progress(NamedTuple):
    """How far a process with ledger records has got."""

    process: ProcessId
    reported_step: int | None
    """The step of its latest record."""
    is_living: bool
    is_present: bool = True
    """Whether it still belongs to the run."""

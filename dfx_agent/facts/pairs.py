"""Mappings whose keys are tuples, in JSON: keys and values apart, since its keys are text.

Keys are alike for all ranks: apart from the values they are compressed to almost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, PlainSerializer

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

KEYS, VALUES = "k", "v"


def _columns(known: Mapping[Any, Any]) -> dict[str, list[Any]]:
    return {KEYS: list(known.keys()), VALUES: list(known.values())}


def _mapping(given: Any) -> Any:
    """Of what stood in JSON; what has no keys and values is left to the validation."""
    if not isinstance(given, dict) or given.keys() != {KEYS, VALUES}:
        return given
    try:
        return dict(zip(map(tuple, given[KEYS]), given[VALUES], strict=True))
    except (TypeError, ValueError) as error:
        raise ValueError("as many values as keys are missing") from error


Pairs = Annotated[Mapping[_Key, _Value], PlainSerializer(_columns), BeforeValidator(_mapping)]

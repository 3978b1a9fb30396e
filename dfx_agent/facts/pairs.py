"""Mappings whose keys are tuples: in JSON a list of pairs, since its keys are text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, PlainSerializer

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def _pairs(known: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    return list(known.items())


def _mapping(given: Any) -> Any:
    """Of what stood in JSON; what is no list of pairs is left to the validation."""
    if not isinstance(given, list):
        return given
    try:
        return {tuple(key): value for key, value in given}
    except TypeError as error:
        raise ValueError("a list of keys and values is missing") from error


Pairs = Annotated[Mapping[_Key, _Value], PlainSerializer(_pairs), BeforeValidator(_mapping)]

"""Mappings with tuples as keys, as JSON: keys and values in separate lists, as JSON keys are text.

All ranks have about the same keys, which compress to almost nothing if they are separate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, PlainSerializer

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

KEYS, VALUES = "k", "v"


def _columns(mapping: Mapping[Any, Any]) -> dict[str, list[Any]]:
    return {KEYS: list(mapping.keys()), VALUES: list(mapping.values())}


def _mapping(content: Any) -> Any:
    """Convert parsed JSON to a mapping; the validation handles anything else."""
    if not isinstance(content, dict) or content.keys() != {KEYS, VALUES}:
        return content
    try:
        return dict(zip(map(tuple, content[KEYS]), content[VALUES], strict=True))
    except (TypeError, ValueError) as error:
        raise ValueError("as many values as keys are missing") from error


Pairs = Annotated[Mapping[_Key, _Value], PlainSerializer(_columns), BeforeValidator(_mapping)]

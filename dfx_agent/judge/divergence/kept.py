"""What parts of the detector have learned, as the next agent takes it: frozen dataclasses.

Format 2 of the files (before 2026-11-22) had no names for most of it: a part was a row of values
in the order of its fields, or had other names (``EARLIER``). ``Annotated[part, FORMAT_2]`` reads
both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from typing import Any, ClassVar

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


class Kept:
    """Base of a part. ``EARLIER``: the name in format 2 -> that of the field, where they differ."""

    EARLIER: ClassVar[Mapping[str, str]] = {}


class _Format2:
    def __get_pydantic_core_schema__(self, part: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(partial(_named, part), handler(part))


FORMAT_2 = _Format2()


def _named(part: Any, given: Any) -> Any:
    """What format 2 wrote, by the names of the fields; what it did not write has its default."""
    if isinstance(given, dict):
        return {part.EARLIER.get(name, name): value for name, value in given.items()}
    if not isinstance(given, list):
        return given
    names = [field.name for field in fields(part)]
    if len(given) > len(names):
        raise ValueError(f"{len(given)} values, known are {len(names)}")
    return dict(zip(names, given, strict=False))

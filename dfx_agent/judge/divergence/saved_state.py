"""Base class of the saved state of the detector's parts, which are frozen dataclasses.

Format 2 of the files (before 2026-11-22) stored most parts as a list of values in the order of
their fields. Some fields had other names (``EARLIER``). ``Annotated[part, FORMAT_2]`` reads both
formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from typing import Any, ClassVar

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


class SavedState:
    """Saved state of one part of the detector."""

    EARLIER: ClassVar[Mapping[str, str]] = {}
    """Earlier name of a field -> its present name."""


class _Format2:
    def __get_pydantic_core_schema__(self, part: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(partial(_named, part), handler(part))


FORMAT_2 = _Format2()


def _named(part: Any, given: Any) -> Any:
    """Values by field name. A field that format 2 did not write has its default."""
    if isinstance(given, dict):
        return {part.EARLIER.get(name, name): value for name, value in given.items()}
    if not isinstance(given, list):
        return given
    names = [field.name for field in fields(part)]
    if len(given) > len(names):
        raise ValueError(f"{len(given)} values for {len(names)} fields")
    return dict(zip(names, given, strict=False))

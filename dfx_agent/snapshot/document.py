"""Rows of contract 2 as JSON and back: what an agent answers and a client reads.

Numbers that are not finite are the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Generic, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import from_json

T = TypeVar("T")


class Document(Generic[T]):
    """One type of contract 2, such as ``Snapshot`` or ``tuple[TimelineRow, ...]``.

    ``is_brief``: fields that have their default are left out.
    """

    def __init__(self, contract: Any, *, is_brief: bool = False) -> None:
        self._contract, self._is_brief = contract, is_brief

    @cached_property
    def _adapter(self) -> TypeAdapter[tuple[T]]:
        """Made when it is first used: that of a whole run takes 0.1 s."""
        return _adapter_of(self._contract)

    def dumped(self, value: T, indent: int | None = None) -> bytes:
        """As JSON, for people to read with ``indent``."""
        is_brief = self._is_brief
        text = self._adapter.dump_json((value,), indent=indent, exclude_defaults=is_brief)
        return text[1:-1].strip()

    def read(self, text: bytes) -> T:
        """Of JSON; ValueError when it is none, or not of this version."""
        try:
            given = from_json(text)
        except ValueError:
            raise ValueError("it is not JSON") from None
        return self.loaded(given)

    def loaded(self, given: Any) -> T:
        """Of parsed JSON; ValueError when it is not of this version."""
        return self._adapter.validate_python((given,))[0]


def _adapter_of(contract: Any) -> TypeAdapter[Any]:
    # pydantic takes no config for a bare dataclass, but does for a tuple that holds one.
    config = ConfigDict(ser_json_inf_nan="strings")
    return TypeAdapter(tuple[contract], config=config)


def reason(error: Exception) -> str:
    """What is wrong with a document that was not taken, in one line: the first place."""
    if not isinstance(error, ValidationError):
        return " ".join(str(error).split())
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"][1:]))  # a tuple of one holds it
    return " ".join(f"{place} {first['msg']}".split())

"""Rows of contract 2 as JSON and back: what an agent answers and a client reads.

Numbers that are not finite are the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from pydantic import ConfigDict, TypeAdapter

T = TypeVar("T")


class Document(Generic[T]):
    """One type of contract 2, such as ``Snapshot`` or ``tuple[TimelineRow, ...]``."""

    def __init__(self, contract: Any) -> None:
        # pydantic takes no config for a bare dataclass, but does for a tuple that holds one.
        config = ConfigDict(ser_json_inf_nan="strings")
        self._adapter: TypeAdapter[tuple[T]] = TypeAdapter(tuple[contract], config=config)

    def dumped(self, value: T) -> bytes:
        """As JSON."""
        return self._adapter.dump_json((value,))[1:-1]

    def loaded(self, given: Any) -> T:
        """Of parsed JSON; ValueError when it is not of this version."""
        return self._adapter.validate_python((given,))[0]

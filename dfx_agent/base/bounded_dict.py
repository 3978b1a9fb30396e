"""A mapping with a bounded number of entries."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

_MAX_ENTRIES = 1024

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class BoundedDict(Generic[_Key, _Value]):
    """Stores the latest 1,024 entries, and drops the oldest entry first."""

    def __init__(self) -> None:
        self._values: OrderedDict[_Key, _Value] = OrderedDict()

    def put(self, key: _Key, value: _Value) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > _MAX_ENTRIES:
            self._values.popitem(last=False)

    def pop(self, key: _Key) -> _Value | None:
        """Remove and return the value; None for an unknown key."""
        return self._values.pop(key, None)

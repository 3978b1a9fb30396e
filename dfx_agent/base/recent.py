"""A mapping that keeps what was put in last."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

_KEEP = 1024

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Newest(Generic[_Key, _Value]):
    """What was put in last, at most 1,024."""

    def __init__(self) -> None:
        self._known: OrderedDict[_Key, _Value] = OrderedDict()

    def put(self, key: _Key, value: _Value) -> None:
        self._known[key] = value
        self._known.move_to_end(key)
        if len(self._known) > _KEEP:
            self._known.popitem(last=False)

    def take(self, key: _Key) -> _Value | None:
        return self._known.pop(key, None)

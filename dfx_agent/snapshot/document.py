"""Converts contract 2 to JSON and back: an agent's answers, as a client reads them.

Numbers that are not finite become the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BeforeValidator, ConfigDict, PlainSerializer, TypeAdapter, ValidationError
from pydantic_core import from_json

T = TypeVar("T")
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

KEYS, VALUES = "k", "v"  # of ``Pairs``


class Document(Generic[T]):
    """Converts one type of contract 2, such as ``Snapshot`` or ``tuple[TimelineRow, ...]``.

    With ``omits_defaults``, fields that have their default value are left out.
    """

    def __init__(self, contract: Any, *, omits_defaults: bool = False) -> None:
        self._contract, self._omits_defaults = contract, omits_defaults

    @cached_property
    def _adapter(self) -> TypeAdapter[tuple[T]]:
        """Built at the first use: the adapter of a whole run takes 0.1 s."""
        return _adapter_of(self._contract)

    def dumped(self, value: T, indent: int | None = None) -> bytes:
        """Convert to JSON; ``indent`` makes it readable for people."""
        exclude = self._omits_defaults
        text = self._adapter.dump_json((value,), indent=indent, exclude_defaults=exclude)
        return text[1:-1].strip()

    def read(self, text: bytes) -> T:
        """Parse JSON; ValueError if it is not valid, or not of this version."""
        try:
            given = from_json(text)
        except ValueError:
            raise ValueError("it is not JSON") from None
        return self.loaded(given)

    def loaded(self, given: Any) -> T:
        """Convert parsed JSON; ValueError if it is not of this version."""
        return self._adapter.validate_python((given,))[0]


def _adapter_of(contract: Any) -> TypeAdapter[Any]:
    # pydantic takes no config for a bare dataclass, but does for a tuple that holds one.
    config = ConfigDict(ser_json_inf_nan="strings")
    return TypeAdapter(tuple[contract], config=config)


def reason(error: Exception) -> str:
    """Why a document was rejected, in one line: the first error."""
    if not isinstance(error, ValidationError):
        return " ".join(str(error).split())
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"][1:]))  # a tuple of one holds it
    return " ".join(f"{place} {first['msg']}".split())


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


# a mapping with tuples as keys, which JSON cannot have: keys and values are separate lists. All
# ranks have about the same keys, which compress to almost nothing if they are separate
Pairs = Annotated[Mapping[_Key, _Value], PlainSerializer(_columns), BeforeValidator(_mapping)]

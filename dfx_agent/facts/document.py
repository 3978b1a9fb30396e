"""Facts as JSON and back, with the version of what they mean.

A field that is new has a default, and who does not know it leaves it out: the version stays. It
goes up when a field goes away, is needed, or means something else. Who writes leaves out what has
its default: most fields of a rank that gets on do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from dfx_agent.facts import bounds
from dfx_agent.facts.run import RunFacts
from dfx_agent.snapshot.document import Document, reason

FACTS_VERSION = 1

_NAME = "dfx-facts"


@dataclass(frozen=True, slots=True)
class _Versioned:
    name: str
    version: int
    facts: RunFacts


_DOCUMENT: Document[_Versioned] = Document(_Versioned, omits_defaults=True)


def dumped(facts: RunFacts) -> bytes:
    """As JSON that names itself and its version."""
    return _DOCUMENT.dumped(_Versioned(_NAME, FACTS_VERSION, facts))


def loaded(text: bytes) -> RunFacts:
    """What ``dumped`` gave, here or on another machine; ValueError of one line if it is not that.

    A version beside ours is refused before its fields are looked at, and so is what is too large.
    """
    bounds.check_size(text)
    try:
        given = from_json(text)
    except ValueError:
        raise ValueError("no facts: it is not JSON") from None
    version = _version(given)
    if version != FACTS_VERSION:
        remedy = "give hub and nodes the same dfx-agent"
        raise ValueError(f"facts of version {version}, the hub reads {FACTS_VERSION}: {remedy}")
    try:
        facts = _DOCUMENT.loaded(given).facts
    except ValueError as error:
        raise ValueError(f"facts that cannot be read: {reason(error)}") from None
    bounds.check(facts)
    return facts


def _version(given: Any) -> int:
    if not isinstance(given, dict) or given.get("name") != _NAME:
        raise ValueError(f"no facts: it does not say that it is {_NAME}")
    version = given.get("version")
    if type(version) is not int:  # True is one too
        raise ValueError("facts without a version")
    return version

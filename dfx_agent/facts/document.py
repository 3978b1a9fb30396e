"""Converts facts to JSON and back, with a version of their meaning.

A new field has a default, and an old reader ignores it: the version stays. The version increases
when a field is removed, becomes mandatory, or changes its meaning. The writer omits fields with
their default, which are most fields of a rank without problems.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from dfx_agent.facts import bounds
from dfx_agent.facts.run import RunFacts
from dfx_agent.snapshot.document import Document, reason

FACTS_VERSION = 3

_NAME = "dfx-facts"


@dataclass(frozen=True, slots=True)
class _Versioned:
    name: str
    version: int
    facts: RunFacts


_DOCUMENT: Document[_Versioned] = Document(_Versioned, omits_defaults=True)


def dumped(facts: RunFacts) -> bytes:
    """Convert facts to JSON that contains its name and version."""
    return _DOCUMENT.dumped(_Versioned(_NAME, FACTS_VERSION, facts))


def loaded(text: bytes) -> RunFacts:
    """Read the result of ``dumped``. Raises ValueError with one line for anything else.

    A different version, or a document that is too large, is refused before its fields are read.
    """
    bounds.check_size(text)
    try:
        content = from_json(text)
    except ValueError:
        raise ValueError("no facts: it is not JSON") from None
    version = _version(content)
    if version != FACTS_VERSION:
        remedy = "give hub and nodes the same dfx-agent"
        raise ValueError(f"facts of version {version}, the hub reads {FACTS_VERSION}: {remedy}")
    try:
        facts = _DOCUMENT.loaded(content).facts
    except ValueError as error:
        raise ValueError(f"facts that cannot be read: {reason(error)}") from None
    bounds.check(facts)
    return facts


def _version(content: Any) -> int:
    if not isinstance(content, dict) or content.get("name") != _NAME:
        raise ValueError(f"no facts: it does not say that it is {_NAME}")
    version = content.get("version")
    if type(version) is not int:  # True is one too
        raise ValueError("facts without a version")
    return version

"""YAML of settings, with limits: brackets in brackets and aliases of aliases cost without end."""

from __future__ import annotations

from typing import Any

import yaml

MAX_CHARACTERS = 1 << 18
MAX_DEPTH = 32
MAX_ALIASES = 100


def loaded(text: str) -> Any:
    """The parsed ``text``; yaml.YAMLError if it is invalid, or larger than settings can be."""
    if len(text) > MAX_CHARACTERS:
        raise yaml.YAMLError(f"longer than {MAX_CHARACTERS:,} characters")
    depth = num_aliases = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        num_aliases += isinstance(event, yaml.AliasEvent)
        if depth > MAX_DEPTH:
            raise yaml.YAMLError(f"nested deeper than {MAX_DEPTH}")
        if num_aliases > MAX_ALIASES:
            raise yaml.YAMLError(f"more than {MAX_ALIASES} aliases")
    return yaml.safe_load(text)

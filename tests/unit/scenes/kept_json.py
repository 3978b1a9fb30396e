"""What a part of the detector keeps, as the next agent reads it."""

from __future__ import annotations

import json
from typing import Any

from dfx_agent.snapshot.document import Document


def through_json(kept: Any, contract: Any = None) -> Any:
    document = Document[Any](contract or type(kept))
    data = document.dumped(kept)
    json.loads(data, parse_constant=_refuse)
    return document.read(data)


def _refuse(number: str) -> float:
    raise AssertionError(f"{number} is no JSON")

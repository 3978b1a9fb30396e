"""One thing that was looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "absent", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """``absent`` is not here and not in the way; a ``problem`` is, and ``remedy`` ends it."""

    subject: str
    state: State
    text: str
    remedy: str = ""

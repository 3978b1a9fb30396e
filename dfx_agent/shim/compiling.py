"""Whether torch is tracing this very call: nothing may be recorded into a compiled graph."""

from __future__ import annotations

import sys
from collections.abc import Callable


def _never() -> bool:
    return False


is_compiling: Callable[[], bool] = _never


def look_for_torch() -> None:
    """Use torch's own answer as soon as torch is loaded; it is a constant while tracing."""
    global is_compiling  # noqa: PLW0603 (bound once; spans read it on every call)
    torch = sys.modules.get("torch")
    compiler = getattr(torch, "compiler", None)
    is_compiling = getattr(compiler, "is_compiling", _never)

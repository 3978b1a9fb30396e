"""Colours of a diagnosis, put on its plain text: states, heads of runs, evidence."""

from __future__ import annotations

import re

_RESET = "\x1b[0m"
_OF_STATE = {
    "found": "\x1b[1;31m",
    "warning": "\x1b[33m",
    "noted": "\x1b[36m",
    "clear": "\x1b[32m",
    "insufficient evidence": "\x1b[2m",
}
_BOLD, _DIM = "\x1b[1m", "\x1b[2m"
_KIND = r"(?:hang|straggler|crash|memory|divergence|data)(?: \([^)]*\))?: "
_STATE = re.compile(rf"^(  (?:{_KIND})?)({'|'.join(_OF_STATE)})(?=:)")


def colored(text: str) -> str:
    """The same text with ANSI colours of the terminal's own palette."""
    lines, is_evidence = [], False
    for line in text.split("\n"):
        is_evidence = line.startswith("    - ") or (is_evidence and line.startswith("      "))
        is_dim = is_evidence or line.startswith("  earlier: ")
        lines.append(f"{_DIM}{line}{_RESET}" if is_dim else _line(line))
    return "\n".join(lines)


def _line(line: str) -> str:
    if line.startswith("blind since "):
        return f"{_OF_STATE['found']}{line}{_RESET}"
    if line.startswith("run "):
        return f"{_BOLD}{line}{_RESET}"
    return _STATE.sub(lambda match: f"{match[1]}{_OF_STATE[match[2]]}{match[2]}{_RESET}", line)

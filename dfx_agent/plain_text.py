"""Foreign text as it may be shown, written and sent: of file names, for one, which are bytes."""

from __future__ import annotations


def plain(text: str) -> str:
    """One line of valid UTF-8; what is no character, or none to be seen, as Python writes it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

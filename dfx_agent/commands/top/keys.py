"""Keys of a terminal without echo: bytes in, names of keys out; the terminal stays as it was."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

_READ_BYTES = 1024
_REST_SECONDS = 0.05  # the rest of an escape sequence arrives within this time, over ssh too
_SEQUENCES = {
    "[A": "up", "[B": "down", "OA": "up", "OB": "down", "[5~": "pageup", "[6~": "pagedown",
    "[H": "home", "[F": "end", "OH": "home", "OF": "end", "[1~": "home", "[4~": "end",
}  # fmt: skip
_NAMES = {"\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\x08": "backspace"}


@contextmanager
def unechoed() -> Iterator[int | None]:
    """The descriptor to read keys from, None where stdin is no terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        changed = termios.tcgetattr(descriptor)
        changed[6][termios.VSUSP] = b"\0"  # Ctrl-Z would leave the screen as it is
        termios.tcsetattr(descriptor, termios.TCSANOW, changed)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)


def read_keys(descriptor: int | None, seconds: float, wake: int) -> list[str]:
    """Names of the keys pressed within ``seconds``; also returns when ``wake`` is readable."""
    waited = [wake] if descriptor is None else [wake, descriptor]
    ready = select.select(waited, [], [], seconds)[0]
    if wake in ready:
        os.read(wake, _READ_BYTES)
    if descriptor is None or descriptor not in ready:
        return []
    given = os.read(descriptor, _READ_BYTES)
    if not given:
        raise EOFError("the terminal is closed")
    is_part = given.endswith((b"\x1b", b"\x1b[", b"\x1bO"))
    if is_part and select.select([descriptor], [], [], _REST_SECONDS)[0]:
        given += os.read(descriptor, _READ_BYTES)
    return keys_in(given.decode("utf-8", "replace"))


def keys_in(text: str) -> list[str]:
    """As in "q", "up", "enter"; unknown escape sequences are left out."""
    keys = []
    while text:
        if text[0] == "\x1b" and text[1:2] in {"[", "O"}:
            end = next((n for n, c in enumerate(text[2:], 2) if "@" <= c <= "~"), len(text) - 1)
            keys.append(_SEQUENCES.get(text[1 : end + 1], ""))
            text = text[end + 1 :]
            continue
        key = "escape" if text[0] == "\x1b" else _NAMES.get(text[0], text[0])
        keys.append(key if len(key) > 1 or key.isprintable() else "")
        text = text[1:]
    return [key for key in keys if key]

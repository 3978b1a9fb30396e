"""Draws frames on a terminal until a key ends it. The terminal is left as it was."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from rich.console import Console, ConsoleDimensions
from rich.text import Text

from dfx_agent.commands.top.frame import Size, frame, rank_keys
from dfx_agent.commands.top.poller import Poller
from dfx_agent.commands.top.view import Choice, Shown, pressed, run_of

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


_REDRAW_SECONDS = 1.0
_DUMB_SECONDS = 5.0
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ASCII = str.maketrans("✕▲✓·†░█▁▂▃▄▅▆▇×…⏎↑↓", "x!v.+:#12345678x.E^v"[:19])


def console_of_stdout() -> Console:
    """No colour where stdout is no terminal, with NO_COLOR, and on dumb terminals."""
    return Console(highlight=False, markup=False, emoji=False)


def print_once(shown: Shown, choice: Choice) -> None:
    """One frame, as high as it needs to be."""
    console = console_of_stdout()
    width, height = shutil.get_terminal_size((80, 24))
    console.size = ConsoleDimensions(width, height)
    size = Size(width, height, has_color(console), is_live=False)
    for line in frame(shown, choice, size):
        console.print(_writable(line), no_wrap=True, crop=True)


def watch(poller: Poller, choice: Choice) -> None:
    """Until q or Ctrl-C."""
    console = console_of_stdout()
    with _ending_signals():
        try:
            if console.is_dumb_terminal:
                _print_again(console, poller, choice)
            else:
                _draw(console, poller, choice)
        except (KeyboardInterrupt, EOFError):
            return


def has_color(console: Console) -> bool:
    return console.color_system is not None and not console.no_color


def _draw(console: Console, poller: Poller, choice: Choice) -> None:
    with unechoed() as keyboard, console.screen(hide_cursor=True) as screen:
        while True:
            size = os.get_terminal_size(sys.stdout.fileno())
            console.size = ConsoleDimensions(size.columns, size.lines)
            shown = poller.shown()
            of_frame = Size(size.columns, size.lines, has_color(console))
            lines = frame(shown, choice, of_frame)
            screen.update(Text("\n").join(map(_writable, lines)))
            for key in read_keys(keyboard, _REDRAW_SECONDS, poller.wake):
                if key == "q" and not choice.is_typing:
                    return
                choice = _chosen(choice, key, shown)


def _chosen(choice: Choice, key: str, shown: Shown) -> Choice:
    names = [run.run for run in shown.snapshot.runs] if shown.snapshot else []
    if key == "tab" and not choice.run:
        run = run_of(shown, choice)
        choice = Choice(run=run.run) if run else choice
    return pressed(choice, key, rank_keys(shown, choice), names)


def _print_again(console: Console, poller: Poller, choice: Choice) -> None:
    """For a terminal that cannot move its cursor: frames one after the other."""
    while True:
        print_once(poller.shown(), choice)
        console.print()
        read_keys(None, _DUMB_SECONDS, poller.pause)


def _writable(line: Text) -> Text:
    """The same line in characters that stdout can encode."""
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
    if encoding == "utf8":
        return line
    written = line.copy()
    written.plain = line.plain.translate(_ASCII).encode("ascii", "replace").decode()
    return written


@contextmanager
def _ending_signals() -> Iterator[None]:
    """These signals end the loop so that the terminal is restored.

    SIGINT too: a shell script that starts a command in the background disables it.
    """

    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in _ENDS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

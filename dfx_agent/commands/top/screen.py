"""Draws frames on a terminal until a key ends it. The terminal is left as it was."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from rich.console import Console, ConsoleDimensions
from rich.text import Text

from dfx_agent.commands.top.frame import Size, frame, rank_keys
from dfx_agent.commands.top.keys import read_keys, unechoed
from dfx_agent.commands.top.poller import Poller
from dfx_agent.commands.top.view import Choice, Shown, pressed, run_of

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

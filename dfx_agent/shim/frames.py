"""Frames of another thread, walked while nobody else has a turn.

In CPython 3.11 a frame object may be left with a freed frame: making one for ``f_back`` starts the
collector, a finalizer gives the interpreter away, and the walked thread returns meanwhile. The next
look at that frame ends the process (of the kind of python/cpython#106883). So the collector rests
during a walk, and from its first to its last instruction the interpreter does not look whether
somebody else is to have a turn: operators stand for calls, and iterators in C for a loop.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable
from functools import partial
from itertools import accumulate, chain, repeat, takewhile
from operator import attrgetter, is_not
from types import CodeType, FrameType
from typing import Any

MAX_FRAMES = 200

_Frames = Callable[[Iterable[Any]], Iterable[Any]]


class _Interpreter:
    """``if it``: the collector is on; ``~it`` turns it off, ``+it`` on; ``-it``: current frames."""

    __slots__ = ()
    __bool__ = gc.isenabled
    __invert__ = gc.disable
    __pos__ = gc.enable
    __neg__ = sys._current_frames  # noqa: SLF001 (its documented name)


class _Top:
    """Stands above the innermost frame until that is known."""

    __slots__ = ("f_back", "f_code", "f_lineno")

    def __init__(self) -> None:
        self.f_back: Any = None
        self.f_code: Any = None
        self.f_lineno: Any = None


_it: Any = _Interpreter()


def threads_now() -> list[int]:
    """Those that run Python, the newest first."""
    frames: Any = ()
    was_on = False
    if _it:
        was_on = True
        ~_it  # noqa: B018 (a call that gives no turn away)
    frames = [*-_it]
    if was_on:
        +_it  # noqa: B018 (a call that gives no turn away)
    return frames  # type: ignore[no-any-return]


def codes_of(ident: int) -> list[CodeType]:
    """Code that a thread is in, innermost first; empty of one that runs no Python.

    Frames themselves would keep the job's objects: none is kept.
    """
    return _walked(ident, partial(map, attrgetter("f_code")))


def lines_of(ident: int) -> list[tuple[CodeType, int | None]]:
    """The same, each with the line that is executed."""
    return _walked(ident, partial(map, attrgetter("f_code", "f_lineno")))


def frames_of(ident: int) -> list[FrameType]:
    """The same as frames. Let go of them soon."""
    return _walked(ident, iter)


def _walked(ident: int, taken: _Frames) -> list[Any]:
    """What is ``taken`` of each frame."""
    top = _Top()
    found: list[Any] = []
    steps = accumulate(repeat("f_back", MAX_FRAMES), getattr, initial=top)
    frames = taken(takewhile(partial(is_not, None), steps))
    # called once each: they return None
    let_go: Iterable[Any] = iter(partial(setattr, top, "f_back", None), None)
    walk_off = chain(frames, let_go)
    walk_on = chain(walk_off, iter(gc.enable, None))
    walk, take = walk_off, found.extend
    try:
        if _it:
            walk = walk_on
            ~_it  # noqa: B018 (a call that gives no turn away)
        top.f_back = (-_it)[ident]
        take(walk)
    except BaseException as error:
        if walk is walk_on:
            +_it  # noqa: B018 (a call that gives no turn away)
        if not isinstance(error, KeyError):  # that thread has ended
            raise
    return found[1:]

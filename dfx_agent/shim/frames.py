"""Reads the frames of another thread without giving that thread a chance to run.

CPython 3.11 may leave a frame object that refers to a freed frame. Creating the object for
``f_back`` can start the garbage collector, a finalizer can release the GIL, and the other thread
then returns from the frame. The next access crashes the process (similar to python/cpython#106883).

Therefore the collector is disabled during a walk. The walk also uses only operators and iterators
in C: the interpreter checks for a waiting thread at calls and loops, but not there.
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
    """``if it``: collector is on; ``~it`` disables it, ``+it`` enables it; ``-it``: all frames."""

    __slots__ = ()
    __bool__ = gc.isenabled
    __invert__ = gc.disable
    __pos__ = gc.enable
    __neg__ = sys._current_frames  # noqa: SLF001 (its documented name)


class _Top:
    """A placeholder above the innermost frame."""

    __slots__ = ("f_back", "f_code", "f_lineno")

    def __init__(self) -> None:
        self.f_back: Any = None
        self.f_code: Any = None
        self.f_lineno: Any = None


_it: Any = _Interpreter()


def threads_now() -> list[int]:
    """Threads that run Python, the latest first."""
    frames: Any = ()
    was_on = False
    if _it:
        was_on = True
        ~_it  # noqa: B018 (a call that does not release the GIL)
    frames = [*-_it]
    if was_on:
        +_it  # noqa: B018 (a call that does not release the GIL)
    return frames  # type: ignore[no-any-return]


def codes_of(ident: int) -> list[CodeType]:
    """Code objects on the stack of a thread, innermost first; empty if it runs no Python.

    Code objects, unlike frames, do not prolong the life of the job's objects.
    """
    return _walk(ident, partial(map, attrgetter("f_code")))


def lines_of(ident: int) -> list[tuple[CodeType, int | None]]:
    """Code objects on the stack of a thread, each with the line that is executed."""
    return _walk(ident, partial(map, attrgetter("f_code", "f_lineno")))


def frames_of(ident: int) -> list[FrameType]:
    """Frames on the stack of a thread. Delete them soon: they prolong the life of locals."""
    return _walk(ident, iter)


def _walk(ident: int, read: _Frames) -> list[Any]:
    """Walk the frames of a thread and return what ``read`` extracts from each."""
    top = _Top()
    values: list[Any] = []
    steps = accumulate(repeat("f_back", MAX_FRAMES), getattr, initial=top)
    frames = read(takewhile(partial(is_not, None), steps))
    # each is called once, because it returns None
    release: Iterable[Any] = iter(partial(setattr, top, "f_back", None), None)
    walk_off = chain(frames, release)
    walk_on = chain(walk_off, iter(gc.enable, None))
    walk, extend = walk_off, values.extend
    try:
        if _it:
            walk = walk_on
            ~_it  # noqa: B018 (a call that does not release the GIL)
        top.f_back = (-_it)[ident]
        extend(walk)
    except BaseException as error:
        if walk is walk_on:
            +_it  # noqa: B018 (a call that does not release the GIL)
        if not isinstance(error, KeyError):  # the thread has ended
            raise
    return values[1:]

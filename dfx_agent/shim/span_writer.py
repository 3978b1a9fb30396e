"""Functions that write a span or a number, each in one piece with all data at hand.

Between two calls of the guest a job uses all its memory, so every Python function and object that a
call touches has left the CPU caches: 1 to 2 us per function (docs/benchmarks.md). Therefore the
layers below ``Recorder`` are joined in this file, and in no other.

Nothing in this file raises into the job, takes a lock, writes to a log or makes a system call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from dfx_agent.shim import permanent_state
from dfx_agent.wire.layout import WORD
from dfx_agent.wire.records import FAILED, RECORD, STAGE
from dfx_agent.wire.ring import WriteBuffer

if TYPE_CHECKING:
    from dfx_agent.shim.recorder import Recorder

# recorder, Span object, id, begin, name id, kind, step, parent, slot (0 none), thread, outer span
OpenSpan = tuple["Recorder", Any, int, int, int, int, int, int, int, int, Any]

innermost: ContextVar[OpenSpan | None] = permanent_state.context_variable("dfx_span")
step_of_context: ContextVar[int | None] = permanent_state.context_variable("dfx_step")

Open = Callable[[Any, str, int], OpenSpan | None]
Close = Callable[[OpenSpan, type[BaseException] | None], None]
Write = Callable[..., None]


def make_open(recorder: Recorder, write_buffer: WriteBuffer, names: dict[str, int]) -> Open:
    """Return ``open(owner, name, kind)``, which begins a span in this context; None on failure."""
    pack_into, buffer, pop = RECORD.pack_into, write_buffer.buffer, write_buffer.free_slots.pop
    outer_of_context, set_innermost, step_now = innermost.get, innermost.set, step_of_context.get
    next_span, now, ident = recorder.next_span, time.monotonic_ns, threading.get_ident
    main_ident, main_id = recorder.main_ident, recorder.main_id

    def open_span(owner: Any, name: str, kind: int) -> OpenSpan | None:
        try:
            if recorder.on_stage is not None and kind == STAGE:
                recorder.on_stage(name)
            outer = outer_of_context()
            parent = outer[2] if outer is not None and outer[0] is recorder else 0
            step = step_now()
            if step is None:
                step = recorder.process_step
            name_id = names.get(name) or recorder.name_id(name)
            thread = main_id if ident() == main_ident else recorder.thread_id()
            span = next_span() & 0xFFFFFFFF
            begin = now()
            try:
                slot = pop()
            except IndexError:  # more open spans than the table has slots
                slot = 0
                recorder.count_unlisted()
            else:
                pack_into(
                    buffer, slot,
                    span, begin, 0, 0.0, step, span, parent, thread, kind, name_id, span,
                )  # fmt: skip
            opened = recorder, owner, span, begin, name_id, kind, step, parent, slot, thread, outer
            set_innermost(opened)
        except Exception:  # noqa: BLE001 (never into the job)
            recorder.count_error()
            return None
        return opened

    return open_span


def make_close(recorder: Recorder, write_buffer: WriteBuffer) -> Close:
    """Return ``close(opened, failure)``, which writes the record of a span and clears its slot."""
    pack_into, clear, buffer, push = (
        RECORD.pack_into, WORD.pack_into, write_buffer.buffer, write_buffer.free_slots.append
    )  # fmt: skip
    next_number, offset, mask, now = (
        write_buffer.next_number,
        write_buffer.offset,
        write_buffer.mask,
        time.monotonic_ns,
    )

    def close_span(opened: OpenSpan, failure: type[BaseException] | None) -> None:
        try:
            _, _, span, begin, name_id, kind, step, parent, slot, thread, _ = opened
            if failure is not None:
                kind |= FAILED
            seq = next_number()
            try:
                pack_into(
                    buffer, offset + ((seq & mask) << 6),
                    seq, begin, now(), 0.0, step, span, parent, thread, kind, name_id, seq,
                )  # fmt: skip
            except Exception:
                write_buffer.write_empty(seq)
                raise
            if slot:
                clear(buffer, slot, 0)
                push(slot)
        except Exception:  # noqa: BLE001 (never into the job)
            recorder.count_error()

    return close_span


def make_write(recorder: Recorder, write_buffer: WriteBuffer, names: dict[str, int]) -> Write:
    """Return ``write(kind, name, value, step=None)``; the default is the step of the context."""
    pack_into, buffer, offset, mask = (
        RECORD.pack_into,
        write_buffer.buffer,
        write_buffer.offset,
        write_buffer.mask,
    )
    next_number, now, step_now = write_buffer.next_number, time.monotonic_ns, step_of_context.get

    def write(kind: int, name: str, value: Any, step: int | None = None) -> None:
        try:
            if step is None:
                step = step_now()
                if step is None:
                    step = recorder.process_step
            if type(value) is not float:
                if type(value) is int:
                    value = float(value)
                else:
                    value = recorder.float_of(kind, name, value, step)
                    if value is None:
                        return
            name_id = names.get(name) or recorder.name_id(name)
            at, seq = now(), next_number()
            try:
                pack_into(
                    buffer, offset + ((seq & mask) << 6),
                    seq, at, at, value, step, 0, 0, 0, kind, name_id, seq,
                )  # fmt: skip
            except Exception:
                write_buffer.write_empty(seq)
                raise
        except Exception:  # noqa: BLE001 (never into the job)
            recorder.count_error()

    return write

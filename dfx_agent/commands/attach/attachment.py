"""Attaches guests to running processes, finds attached guests, and detaches them.

A guest writes its note, ``.attached``, next to its segment ``<pid>-<id>.seg``. The note exists as
long as any part of the guest is in the process. A file ``.detach`` asks the guest to leave.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Literal

from dfx_agent import __version__
from dfx_agent.attach.bring import Order, runs_our_interpreter
from dfx_agent.attach.inject import Helpers, inject
from dfx_agent.attach.processes import HostProcess
from dfx_agent.base.errors import AttachError
from dfx_agent.node.segments.owned_files import HeldFolder, open_existing, read_file
from dfx_agent.shim.attached import NOTE_SUFFIX, REQUEST_SUFFIX
from dfx_agent.wire import SegmentError, SegmentReader
from dfx_agent.wire.layout import STATE_LIVE

_BUDGET_SECONDS = 5.0
_ANSWER_SECONDS = 15.0
_POLL_SECONDS = 0.05


# of a guest: taken out, or its process ended by itself, orderly or not
Departure = Literal["detached", "ended", "died"]

# files that a dead guest leaves next to its segment
LEFTOVERS = (NOTE_SUFFIX, REQUEST_SUFFIX)


@dataclass(frozen=True)
class AttachedGuest:
    """A guest that lives in a process now.

    ``note`` is None when it was not brought in by attach: then it belongs to the job and stays.
    """

    process: HostProcess
    stem: str
    note: Mapping[str, object] | None = field(compare=False)

    @property
    def since(self) -> str:
        seconds = (self.note or {}).get("since_epoch_seconds")
        moment = time.localtime(seconds if isinstance(seconds, int | float) else None)
        return time.strftime("%F %T", moment)

    @property
    def max_overhead_ratio(self) -> float | None:
        """The overhead budget of the guest; None if it has none."""
        ratio = (self.note or {}).get("max_overhead_ratio")
        return ratio if isinstance(ratio, float) else None

    def ask_to_leave(self) -> None:
        with suppress(FileExistsError, FileNotFoundError), self._folder() as folder:
            folder.create(self._name + REQUEST_SUFFIX)

    def has_stopped(self) -> bool:
        """It took the request: nothing is recorded any more."""
        return not os.path.lexists(self.stem + REQUEST_SUFFIX)

    def departure(self) -> Departure | None:
        """How it went, None while something of it is in the process."""
        was_alive = self.process.is_alive()  # asked first: what has left may end a moment later
        if not os.path.lexists(self.stem + NOTE_SUFFIX):
            return "detached"
        if was_alive:
            return None
        for suffix in LEFTOVERS:
            with suppress(OSError), self._folder() as folder:
                folder.remove(self._name + suffix)
        return "died" if _is_live(self.stem) else "ended"

    @property
    def _name(self) -> str:
        return os.path.basename(self.stem)

    def _folder(self) -> closing[HeldFolder]:
        """It may be another user's, and what is in it whatever he likes."""
        return closing(open_existing(os.path.dirname(self.stem)))


class SegmentFolder:
    """The folder of segments, as processes of the job see it and as we do.

    They differ when the job lives in a mount namespace of its own (a container).
    """

    def __init__(self, directory: str, process: HostProcess) -> None:
        self.inside = self.seen = directory
        if process.mount_namespace not in {0, _own_mount_namespace()}:
            self.seen = f"/proc/{process.pid}/root{directory}"

    def guest_in(self, process: HostProcess) -> AttachedGuest | None:
        """The guest that records in this process, None when there is none."""
        for stem in self._stems(process):
            try:
                segment = SegmentReader(f"{stem}.seg")
            except SegmentError:
                continue
            is_live = segment.live_words()[0] == STATE_LIVE
            is_its = segment.preamble.start_ticks == process.start_ticks
            segment.close()
            if is_live and is_its:
                return AttachedGuest(process, stem, _note(stem))
        return None

    def _stems(self, process: HostProcess) -> Iterator[str]:
        with suppress(OSError):
            for name in os.listdir(self.seen):
                if name.startswith(f"{process.inner_pid}-") and name.endswith(".seg"):
                    yield os.path.join(self.seen, name.removesuffix(".seg"))

    def bring_guest(
        self,
        process: HostProcess,
        variables: Mapping[str, str],
        *,
        method: str,
        grace_seconds: float,
        max_overhead_ratio: float | None,
        helpers: Helpers,
        on_waiting: Callable[[str], None],
    ) -> tuple[AttachedGuest, str]:
        """The guest and how it was attached ("thread, Python 3.12"). AttachError if not."""
        if not process.is_alive():
            raise AttachError("gone", f"pid {process.pid} exited while attaching", "nothing to do")
        order = Order(
            self.inside,
            self.seen,
            version=__version__,
            identity_fields=variables,
            grace_seconds=grace_seconds,
            max_overhead_ratio=max_overhead_ratio,
            is_compiled=runs_our_interpreter(process.pid),
        )
        injected = inject(
            process.pid,
            order.source,
            method=method,
            budget_seconds=_BUDGET_SECONDS,
            helper=helpers.pop(),
            on_waiting=on_waiting,
        )
        if not injected.ran:
            raise AttachError("waiting", injected.message, "trying again while this runs")
        answer = order.answer(_ANSWER_SECONDS)
        if answer is None:
            reason = f"the guest said nothing within {_ANSWER_SECONDS:g} s"
            raise AttachError("silent", reason, "look whether pid imports torch just now; retry")
        if answer.state not in {"attached", "observed"}:
            raise AttachError(answer.state, answer.message, _REMEDIES[answer.state])
        stem = os.path.join(self.seen, os.path.basename(answer.segment).removesuffix(".seg"))
        note = _note(stem) if answer.state == "attached" else None
        return AttachedGuest(process, stem, note), f"{injected.method}, Python {answer.python}"


_REMEDIES = {
    "busy": "look at its page, or end that agent first",
    "skipped": "nothing to do",
    "refused": "nothing was changed",
    "failed": "nothing was changed",
}


def wait_until_left(
    guests: list[AttachedGuest], seconds: float, pause: Callable[[float], bool]
) -> Iterator[tuple[AttachedGuest, Departure | None]]:
    """Each guest as it goes; at the end those that have not, with None.

    ``pause(seconds)`` returns True when nobody wants to wait any longer.
    """
    waiting = list(guests)
    end = time.monotonic() + seconds
    while waiting and time.monotonic() < end and not pause(_POLL_SECONDS):
        for guest in list(waiting):
            if departure := guest.departure():
                waiting.remove(guest)
                yield guest, departure
    for guest in waiting:
        yield guest, guest.departure()


def said_of(guest: AttachedGuest, departure: Departure | None, seconds: float) -> str:
    """The outcome in words, ``seconds`` after the guest was asked to leave."""
    if departure == "detached":
        return f"detached in {seconds:.1f} s"
    if departure is not None:
        return f"{departure} while detaching"
    if guest.has_stopped():
        return "records no more; its last hooks do nothing and go with its next backward"
    return "has not answered (stopped, or in a long C call); it leaves as soon as it runs"


def _is_live(stem: str) -> bool:
    """Whether the segment was not closed in order; one that an agent has removed was."""
    try:
        segment = SegmentReader(f"{stem}.seg")
    except SegmentError:
        return False
    state = segment.live_words()[0]
    segment.close()
    return state == STATE_LIVE


def _note(stem: str) -> Mapping[str, object] | None:
    try:
        note = json.loads(read_file(stem + NOTE_SUFFIX, 1 << 14))
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) else None


def _own_mount_namespace() -> int:
    return os.stat("/proc/self/ns/mnt").st_ino

"""Segments as they appear, and whether their processes still live.

A process is identified by boot, pid namespace, pid and start time: a reused pid is another process.
Only one agent per folder reaps (removes) segments of processes that are gone; a second one reads.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import compress
from typing import Literal

from dfx_agent.base.log import OncePerPlace
from dfx_agent.base.text import plain
from dfx_agent.facts.exit_status import ExitStatus
from dfx_agent.node.host.descriptors import Allowance, of_this_process
from dfx_agent.node.host.exit_status import ExitWatch, zombie_status
from dfx_agent.node.host.processes import PARENT, START_TICKS, STATE, has_our_clocks, stat_fields
from dfx_agent.node.segments import lock
from dfx_agent.node.segments.owned_files import HeldFolder, open_observed
from dfx_agent.node.segments.told_layout import ToldLayout
from dfx_agent.node.time.account import SpanEvent
from dfx_agent.snapshot import SegmentProblem
from dfx_agent.wire import Identity, SegmentError, SegmentReader
from dfx_agent.wire.failure import Failure, failure_location, parse_failure
from dfx_agent.wire.layout import (
    IDENTITY_OFFSET,
    MAIN_FAILURE,
    RECORD_BYTES,
    STATE_CLOSED,
    STATE_DETACHED,
    THREAD_FAILURE,
    VERSION_OF_SPAN_SEGMENT,
    WORD,
)
from dfx_agent.wire.records import BLOCKING, KIND_MASK, SPAN_FIELDS, WAIT, Record
from dfx_agent.wire.ring import read_inflight
from dfx_agent.wire.segment import (
    SIDE_FILE_SUFFIXES,
    STARTING_SUFFIX,
    SUFFIX,
    Preamble,
    boot_id,
    pid_namespace,
)

Liveness = Literal["live", "exited", "detached", "died", "unknown"]
_ENDS: dict[int | None, Liveness] = {STATE_CLOSED: "exited", STATE_DETACHED: "detached"}

_BOOT_ID = boot_id()
_PID_NAMESPACE = pid_namespace()
_CLOCK_EVERY_NS = 5 * 10**9
_ABANDONED_SECONDS = 60.0
_LOOK_CLOSELY_EVERY = 8
_KEPT_BY_EACH = 2  # a segment, and the process that writes it


@dataclass(frozen=True)
class Batch:
    """One reading: open spans first, then records, so that nothing falls between the two.

    ``packed`` are whole records of 64 bytes.
    """

    time_ns: int
    inflight: list[SpanEvent]
    packed: bytearray


class Follower:
    """One process' segment. SegmentError when the file is not one of ours.

    ``pid`` is the process as it is seen from here, None where it is not: on another host, or in a
    container whose processes we may not see. ``folder`` is the one that the file is in, held open.
    What has no part in the ``allowance`` of descriptors is opened for each reading.
    """

    def __init__(
        self, path: str, folder: HeldFolder | None = None, allowance: Allowance | None = None
    ) -> None:
        self.path = path
        self.folder = folder
        self._allowance = allowance
        self._segment = SegmentReader(path, folder.fd if folder else None)
        self.preamble = self._segment.preamble
        self.identity = self._segment.identity() or Identity()
        self._generation = b""
        self.names: dict[int, str] = {}
        self.pid = _pid_here(self.preamble)
        self.parent_pid = _parent(self.pid)
        self._exit: ExitWatch | None = None
        self.epoch_offset_ns = 0
        self._next_clock_ns = 0
        self.layout = ToldLayout()
        self._table = b""
        self._num_looks = 0
        self._told_ns = 0
        self.num_guest_drops = 0
        self._begin_ns = self.begin_offset_ns = 0
        self._has_our_clocks = self.pid is not None and has_our_clocks(self.pid)
        self.failure: Failure | None = None
        self.thread_failure: Failure | None = None
        self._read_clock()
        self._keeps = allowance is None or allowance.take(_KEPT_BY_EACH)
        if not self._keeps:
            self._segment.open_on_demand()

    @property
    def is_told_late(self) -> bool:
        """Whether an agent wrote down what a job told: its records alone say what time it is."""
        return self.preamble.guest_version == VERSION_OF_SPAN_SEGMENT

    @property
    def begin_ns(self) -> int:
        """When the segment was created, on the guest's monotonic clock."""
        return self._begin_ns

    @property
    def num_overwritten(self) -> int:
        """Of the lost ones those that a ring of this size no longer holds."""
        return min(self.num_lost, max(0, self.position - self.preamble.num_records))

    @property
    def num_lost(self) -> int:
        return self._segment.ring.num_lost

    @property
    def num_read(self) -> int:
        return self._segment.ring.num_read

    @property
    def position(self) -> int:
        """Number of the newest record that was read, or given up."""
        return self._segment.ring.position

    def epoch_seconds(self, monotonic_ns: int) -> float:
        """Unix time of a stamp of this process."""
        return (monotonic_ns + self.epoch_offset_ns) / 1e9

    def name(self, name_id: int) -> str:
        known = self.names.get(name_id)
        if known is None:
            known = self._segment.name(name_id)
            if known is None:
                return f"name#{name_id}"
            self.names[name_id] = known
        return known

    def status_beside(self, suffix: str) -> os.stat_result | None:
        """Of a file that the guest writes beside its segment; None where there is none."""
        stem = self.path.removesuffix(SUFFIX)
        if self.folder is not None:
            return self.folder.status(os.path.basename(stem) + suffix)
        try:
            return os.stat(stem + suffix, follow_symlinks=False)
        except OSError:
            return None

    def is_quiet(self) -> bool:
        """Whether nothing has changed since the last ``poll``, as far as a short look can tell.

        Every eighth time it is said to have, so that what a short look misses is read then.
        """
        if self.is_told_late:
            return False
        self._num_looks += 1
        if self._num_looks % _LOOK_CLOSELY_EVERY == 0:
            return False
        with self._segment.opened():
            return self._segment.ring.seems_empty() and self._read_table() == self._table

    def poll(self, *, is_last: bool = False, up_to: int = 0) -> Batch:
        """What is new, at once as far as record ``up_to`` where it is there.

        ``is_last``: the writer is gone, read to the very end. SegmentError when its file is gone
        before it: nothing is known of it any more.
        """
        with self._segment.opened() as is_there:
            if not is_there and not is_last:
                raise SegmentError("gone", f"{self.path} was removed while its process runs")
            return self._poll(is_last=is_last, up_to=up_to)

    def _poll(self, *, is_last: bool, up_to: int) -> Batch:
        now = time.monotonic_ns()
        if now >= self._next_clock_ns:
            self._next_clock_ns = now + _CLOCK_EVERY_NS
            self._read_clock()
            self.layout.take(self._segment.texts(self.layout.num_texts))
            self.num_guest_drops = sum(self._segment.live_words()[2:])
        inflight = [self._as_open(record) for record in self._inflight()]
        ring = self._segment.ring
        packed = ring.drain() if is_last else ring.poll()
        while ring.position < up_to and (more := ring.poll()):
            packed += more
        if self.is_told_late:
            now = self._told_until(packed)
        # after the records: what they mean depends on the framework that was named before them
        self._read_identity()
        return Batch(now, inflight, packed)

    def _told_until(self, packed: bytearray) -> int:
        """The newest end of a record."""
        ends = (end for _, end, *_ in SPAN_FIELDS.iter_unpack(packed))
        self._told_ns = max(ends, default=0) or self._told_ns or self.begin_ns
        return self._told_ns

    def liveness(self) -> Liveness:
        with self._segment.opened() as is_there:
            state = self._segment.live_words()[0] if is_there else None
        if self.is_told_late:  # how its process is, nobody knows; who wrote it down may be gone
            is_written = self.preamble.boot_id == _BOOT_ID and self.pid is not None
            is_written = is_written and state not in _ENDS and self._runs(self.pid or 0)
            return "unknown" if is_written else "exited"
        if state in _ENDS:
            return _ENDS[state]
        if self.preamble.boot_id != _BOOT_ID:
            return "died"
        if self.pid is None:
            return "unknown"
        if self._runs(self.pid):
            return "live"
        # os._exit(0), as a forked child should end, runs nothing that would close a segment
        status = self.exit_status
        # whoever reaps removes at once what ended in an orderly way, and only that
        is_orderly = status.is_success if status is not None else state is None
        return "exited" if is_orderly else "died"

    def still_runs(self) -> bool:
        """Whether its process is there, its segment closed or not; False where that is not seen."""
        if self.pid is None or self.preamble.boot_id != _BOOT_ID:
            return False
        return self._runs(self.pid)

    @property
    def exit_status(self) -> ExitStatus | None:
        """None while the process runs, and where its kernel does not say how it ended."""
        if self._exit is not None:
            return self._exit.status
        return None if self.pid is None else zombie_status(self.pid, self.preamble.start_ticks)

    def finish(self) -> None:
        """The writer is gone: what is unfinished is lost, and the file can be let go."""
        with self._segment.opened() as is_there:
            if is_there:
                self.layout.take(self._segment.texts(self.layout.num_texts))
                self.num_guest_drops = sum(self._segment.live_words()[2:])
                self._read_failures()
        self._segment.close()
        if self._keeps and self._allowance is not None:
            self._allowance.give_back(_KEPT_BY_EACH)
        self._keeps = False

    def _runs(self, pid: int) -> bool:
        """Whether this very process lives. /proc is read once: it costs 100 us, a pidfd 2 us."""
        if self._exit is None:
            if not _is_running(pid, self.preamble.start_ticks):
                return False
            try:
                self._exit = ExitWatch(pid, self.preamble.start_ticks, keeps=self._keeps)
            except OSError:
                return True
            if not _is_running(pid, self.preamble.start_ticks):
                return False
        return not self._exit.has_ended()

    def _read_table(self) -> bytes:
        preamble = self.preamble
        return self._segment.read(preamble.inflight_offset, preamble.num_inflight * RECORD_BYTES)

    def _inflight(self) -> list[Record]:
        """Spans open now. The table is mostly free: only the slots in use are read closely."""
        read, start = self._segment.read, self.preamble.inflight_offset
        table = self._table = self._read_table()
        whole = memoryview(table)[: len(table) // RECORD_BYTES * RECORD_BYTES]
        heads = whole.cast("Q")[:: RECORD_BYTES // WORD.size].tolist()
        taken = list(compress(range(len(heads)), heads))
        if not taken:
            return []
        first, last = taken[0], taken[-1]
        return read_inflight(read, start + first * RECORD_BYTES, last - first + 1)

    def _as_open(self, record: Record) -> SpanEvent:
        _, begin, _, _, step, span, parent, thread, flagged, name, _ = record
        kind, text = flagged & KIND_MASK, self.name(name)
        is_accounted = kind <= WAIT or bool(flagged & BLOCKING)
        return SpanEvent(span, parent, kind, text, begin, None, step, is_accounted, thread)

    def _read_identity(self) -> None:
        """It changes once or twice in a life: its first word tells."""
        generation = self._segment.read(IDENTITY_OFFSET, WORD.size)
        identity = self._segment.identity() if generation != self._generation else None
        if identity is not None:
            self._generation, self.identity = generation, identity

    def _read_failures(self) -> None:
        """Exceptions that nobody caught: the one that ended the process, and one of a thread."""
        read = self._segment.read
        self.failure = parse_failure(read(*failure_location(MAIN_FAILURE)))
        self.thread_failure = parse_failure(read(*failure_location(THREAD_FAILURE)))

    def _read_clock(self) -> None:
        """The wall clock may be set at any time: the monotonic begin is read once."""
        pairs = self._segment.clock_pairs()
        if not pairs:
            return
        if not self._begin_ns:
            monotonic, epoch = pairs[0]
            self._begin_ns = self.preamble.created_epoch_ns - (epoch - monotonic)
            if self._has_our_clocks and not self.is_told_late:
                self.begin_offset_ns = epoch - monotonic
        monotonic, epoch = pairs[-1]
        self.epoch_offset_ns = epoch - monotonic
        if self.begin_offset_ns:
            # a guest that is stuck writes no pairs: it would stay at the clock of before a step
            self.epoch_offset_ns = time.time_ns() - time.monotonic_ns()


def _pid_here(preamble: Preamble) -> int | None:
    """Its pid in our namespace; one in a container has another there."""
    if preamble.boot_id != _BOOT_ID:
        return None
    if preamble.pid_namespace == _PID_NAMESPACE:
        return preamble.pid
    for name in filter(str.isdigit, os.listdir("/proc")):
        if _is_running(int(name), preamble.start_ticks) and _is_inside(int(name), preamble):
            return int(name)
    return None


def _is_inside(pid: int, preamble: Preamble) -> bool:
    try:
        if os.stat(f"/proc/{pid}/ns/pid").st_ino != preamble.pid_namespace:
            return False
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
            pids = next((line.split() for line in status if line.startswith("NSpid:")), [])
    except OSError:
        return False
    return pids[-1:] == [str(preamble.pid)]


class Folder:
    """The folder of segments. SegmentError when it cannot be created or is not private.

    ``reap=False`` only looks: it takes no lock and removes nothing.
    """

    def __init__(self, path: str, *, reap: bool = True) -> None:
        self._held = open_observed(path)
        self._may_reap = reap
        self._allowance = of_this_process()
        self.path = path
        self.problems: dict[str, SegmentProblem] = {}
        self.num_reaped = 0
        self._known: set[str] = set()
        self._starting: dict[str, float] = {}  # names of files, and when they were seen first
        self._listed_ns = 0  # when the folder had last changed as it was listed
        self._lock: lock.FolderLock | None = None
        self._lock_problem = ""
        self._address = ("", "")
        self._log = OncePerPlace("dfx_agent.agent")
        self.other_agent_pid: int | None = None
        self._take_lock()

    @property
    def reaps(self) -> bool:
        return self._lock is not None

    @property
    def owner_uid(self) -> int:
        return self._held.uid

    def has_changed(self) -> bool:
        """Whether files may have come or gone since ``new_followers`` looked."""
        return self._changed_ns() != self._listed_ns

    def new_followers(self) -> Iterator[Follower]:
        """Followers for segments that were not there at the last call; problems are noted."""
        is_there = self._hold_again()
        if is_there and not self.reaps:
            self._take_lock()
        self._listed_ns = self._changed_ns()
        present = set(self._list())
        self._known &= present
        self.problems = {
            path: p for path, p in self.problems.items() if path in present or path == self.path
        }
        if not is_there:
            self._note_problem(f"cannot list {self.path}: it went away")
        for path in sorted(present - self._known):
            self._known.add(path)
            try:
                yield Follower(path, self._held, self._allowance)
            except SegmentError as error:
                self.problems[path] = SegmentProblem(plain(path), error.kind, plain(str(error)))
            except Exception as error:  # noqa: BLE001 (whatever is in the folder, the rest is read)
                self._log.error(f"opening {plain(path)}", error)
                reason = plain(f"cannot open {path} ({type(error).__name__}: {error})")
                self.problems[path] = SegmentProblem(plain(path), "strange", reason)

    def announce(self, url: str, certificate: str) -> None:
        """Say in the lock, while it is ours, where this agent is to be asked."""
        self._address = url, certificate
        if self._lock is not None:
            self._lock.announce(*self._address)

    def reap(self, path: str) -> None:
        """Remove the segment of a process that is gone, if removing is ours to do."""
        if self.reaps:
            name = os.path.basename(path)
            self._held.remove(name)
            for suffix in SIDE_FILE_SUFFIXES:
                self._held.remove(name.removesuffix(SUFFIX) + suffix)
            self.num_reaped += 1

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _hold_again(self) -> bool:
        """Whether it is there; one that was removed and made anew is held from now on."""
        try:
            status = os.stat(os.path.normpath(self.path), follow_symlinks=False)
            if (status.st_dev, status.st_ino) == self._held.id:
                return True
            held = open_observed(self.path)
        except (OSError, SegmentError):
            return False
        self.close()
        self._held = held  # the other one stays open: its followers read on
        return True

    def _changed_ns(self) -> int:
        try:
            return os.stat(self.path).st_mtime_ns
        except OSError:
            return 0

    def _note_problem(self, message: str) -> None:
        self.problems[self.path] = SegmentProblem(self.path, "folder", message)

    def _list(self) -> Iterator[str]:
        try:
            names = self._held.names()
        except OSError as error:
            self._note_problem(f"cannot list {self.path}: {error.strerror}")
            return
        self.problems.pop(self.path, None)
        if self._lock_problem:
            self._note_problem(self._lock_problem)
        for name in names:
            if name.endswith(SUFFIX):
                yield os.path.join(self.path, name)
            elif name.endswith(STARTING_SUFFIX) and self.reaps:
                self._remove_abandoned(name)

    def _remove_abandoned(self, name: str) -> None:
        """A process that was killed while it created its segment leaves this behind."""
        now = time.monotonic()  # the wall clock may have been set since the file was written
        if now - self._starting.setdefault(name, now) > _ABANDONED_SECONDS:
            self._held.remove(name)
            del self._starting[name]

    def _take_lock(self) -> None:
        if not self._may_reap:
            return
        try:
            taken = lock.take(self._held)
        except OSError as error:
            reason = error.strerror
            self._lock_problem = f"cannot take {self.path}/{lock.LOCK_NAME} ({reason}): remove it"
            self._note_problem(self._lock_problem)
            return
        self._lock_problem = ""
        if isinstance(taken, lock.FolderLock):
            self._lock, self.other_agent_pid = taken, None
            taken.announce(*self._address)
        elif taken is not None:
            self.other_agent_pid = taken.pid


def _parent(pid: int | None) -> int | None:
    """None when it is gone, or not seen from here."""
    fields = [] if pid is None else stat_fields(f"/proc/{pid}/stat")
    return int(fields[PARENT]) if len(fields) > PARENT else None


def _is_running(pid: int, start_ticks: int) -> bool:
    """Whether this very process lives; a zombie does not."""
    fields = stat_fields(f"/proc/{pid}/stat")
    is_whole = len(fields) > START_TICKS
    return is_whole and fields[STATE] not in {"Z", "X"} and int(fields[START_TICKS]) == start_ticks

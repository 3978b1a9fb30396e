"""Finds segments in a folder, reads them, and checks whether their processes are alive.

A process is identified by boot, pid namespace, pid and start time, because pids are reused. Only
one agent per folder removes the segments of exited processes; any other agent only reads.
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
from dfx_agent.facts.rank import ExitStatus
from dfx_agent.node.host.exit_status import ExitWatch, zombie_status
from dfx_agent.node.host.processes import (
    PARENT,
    START_TICKS,
    STATE,
    Allowance,
    has_our_clocks,
    process_allowance,
    stat_fields,
)
from dfx_agent.node.segments import lock
from dfx_agent.node.segments.owned_files import HeldFolder, open_observed
from dfx_agent.node.segments.reported_layout import ReportedLayout
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
_FULL_CHECK_EVERY = 8
_DESCRIPTORS_PER_SEGMENT = 2  # the segment, and a pidfd of the process that writes it


@dataclass(frozen=True)
class RecordBatch:
    """Result of one poll. Open spans are read before the records, so that no span is missed."""

    time_ns: int
    inflight: list[SpanEvent]
    packed: bytearray  # whole records of 64 bytes


class Follower:
    """Reads the segment of one process. Raises SegmentError for a file that is no segment.

    ``pid`` is the pid in this namespace. It is None if the process is on another host or in a
    container whose processes are not visible. ``folder`` is the open folder that holds the file. If
    the ``allowance`` of descriptors is used up, the file is opened for each poll.
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
        self.layout = ReportedLayout()
        self._table = b""  # the in-flight table at the last poll
        self._num_checks = 0
        self._last_end_ns = 0
        self.num_guest_drops = 0
        self._begin_ns = self.begin_offset_ns = 0
        self._has_our_clocks = self.pid is not None and has_our_clocks(self.pid)
        self.failure: Failure | None = None
        self.thread_failure: Failure | None = None
        self._read_clock()
        self._holds_open = allowance is None or allowance.take(_DESCRIPTORS_PER_SEGMENT)
        if not self._holds_open:
            self._segment.open_on_demand()

    @property
    def is_written_by_agent(self) -> bool:
        """Whether an agent wrote the segment from data that the job sent, so the clock may lag."""
        return self.preamble.guest_version == VERSION_OF_SPAN_SEGMENT

    @property
    def begin_ns(self) -> int:
        """When the segment was created, on the guest's monotonic clock."""
        return self._begin_ns

    @property
    def num_overwritten(self) -> int:
        """Lost records that a ring of this size has overwritten."""
        return min(self.num_lost, max(0, self.position - self.preamble.num_records))

    @property
    def num_lost(self) -> int:
        return self._segment.ring.num_lost

    @property
    def num_read(self) -> int:
        return self._segment.ring.num_read

    @property
    def position(self) -> int:
        """Number of the last record that was read or skipped."""
        return self._segment.ring.position

    def epoch_seconds(self, monotonic_ns: int) -> float:
        """Convert a monotonic timestamp of this process to Unix time."""
        return (monotonic_ns + self.epoch_offset_ns) / 1e9

    def name(self, name_id: int) -> str:
        name = self.names.get(name_id)
        if name is None:
            name = self._segment.name(name_id)
            if name is None:
                return f"name#{name_id}"
            self.names[name_id] = name
        return name

    def sibling_status(self, suffix: str) -> os.stat_result | None:
        """Status of a file that the guest writes next to its segment; None if there is none."""
        stem = self.path.removesuffix(SUFFIX)
        if self.folder is not None:
            return self.folder.status(os.path.basename(stem) + suffix)
        try:
            return os.stat(stem + suffix, follow_symlinks=False)
        except OSError:
            return None

    def is_quiet(self) -> bool:
        """Whether nothing has changed since the last ``poll``, judged by a cheap check.

        Every eighth call returns False, so that a change that the check misses is read then.
        """
        if self.is_written_by_agent:
            return False
        self._num_checks += 1
        if self._num_checks % _FULL_CHECK_EVERY == 0:
            return False
        with self._segment.opened():
            return self._segment.ring.seems_empty() and self._read_table() == self._table

    def poll(self, *, is_last: bool = False, up_to: int = 0) -> RecordBatch:
        """Read what is new. Reads at least up to record ``up_to`` if that has been written.

        With ``is_last`` the process has exited, and everything is read. Raises SegmentError if the
        file was removed while the process runs: nothing more can be read then.
        """
        with self._segment.opened() as is_there:
            if not is_there and not is_last:
                raise SegmentError("gone", f"{self.path} was removed while its process runs")
            return self._poll(is_last=is_last, up_to=up_to)

    def _poll(self, *, is_last: bool, up_to: int) -> RecordBatch:
        now = time.monotonic_ns()
        if now >= self._next_clock_ns:
            self._next_clock_ns = now + _CLOCK_EVERY_NS
            self._read_clock()
            self.layout.read(self._segment.texts(self.layout.num_texts))
            self.num_guest_drops = sum(self._segment.live_words()[2:])
        inflight = [self._as_open(record) for record in self._inflight()]
        ring = self._segment.ring
        packed = ring.drain() if is_last else ring.poll()
        while ring.position < up_to and (more := ring.poll()):
            packed += more
        if self.is_written_by_agent:
            now = self._last_end(packed)
        # after the records: their meaning depends on the framework that was set before them
        self._read_identity()
        return RecordBatch(now, inflight, packed)

    def _last_end(self, packed: bytearray) -> int:
        """The latest end of a record, in this batch or before."""
        ends = (end for _, end, *_ in SPAN_FIELDS.iter_unpack(packed))
        self._last_end_ns = max(ends, default=0) or self._last_end_ns or self.begin_ns
        return self._last_end_ns

    def liveness(self) -> Liveness:
        with self._segment.opened() as is_there:
            state = self._segment.live_words()[0] if is_there else None
        if self.is_written_by_agent:  # the state of the job is unknown, only that of the agent
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
        # os._exit(0), as used in a forked child, runs no code that would close the segment
        status = self.exit_status
        # the agent that reaps removes segments at once after a normal exit, and only then
        is_orderly = status.is_success if status is not None else state is None
        return "exited" if is_orderly else "died"

    def still_runs(self) -> bool:
        """Whether the process exists, with or without an open segment; False if not visible."""
        if self.pid is None or self.preamble.boot_id != _BOOT_ID:
            return False
        return self._runs(self.pid)

    @property
    def exit_status(self) -> ExitStatus | None:
        """None while the process runs, and if the kernel does not report how it ended."""
        if self._exit is not None:
            return self._exit.status
        return None if self.pid is None else zombie_status(self.pid, self.preamble.start_ticks)

    def finish(self) -> None:
        """The process has exited: read the rest of its file and close it."""
        with self._segment.opened() as is_there:
            if is_there:
                self.layout.read(self._segment.texts(self.layout.num_texts))
                self.num_guest_drops = sum(self._segment.live_words()[2:])
                self._read_failures()
        self._segment.close()
        if self._holds_open and self._allowance is not None:
            self._allowance.give_back(_DESCRIPTORS_PER_SEGMENT)
        self._holds_open = False

    def _runs(self, pid: int) -> bool:
        """Whether the same process is alive. /proc is read once: it costs 100 µs, a pidfd 2 µs."""
        if self._exit is None:
            if not _is_running(pid, self.preamble.start_ticks):
                return False
            try:
                self._exit = ExitWatch(pid, self.preamble.start_ticks, holds_open=self._holds_open)
            except OSError:
                return True
            if not _is_running(pid, self.preamble.start_ticks):
                return False
        return not self._exit.has_ended()

    def _read_table(self) -> bytes:
        preamble = self.preamble
        return self._segment.read(preamble.inflight_offset, preamble.num_inflight * RECORD_BYTES)

    def _inflight(self) -> list[Record]:
        """Open spans. Most slots of the table are free, so only the used ones are read."""
        read, start = self._segment.read, self.preamble.inflight_offset
        table = self._table = self._read_table()
        whole = memoryview(table)[: len(table) // RECORD_BYTES * RECORD_BYTES]
        heads = whole.cast("Q")[:: RECORD_BYTES // WORD.size].tolist()
        used = list(compress(range(len(heads)), heads))
        if not used:
            return []
        first, last = used[0], used[-1]
        return read_inflight(read, start + first * RECORD_BYTES, last - first + 1)

    def _as_open(self, record: Record) -> SpanEvent:
        _, begin, _, _, step, span, parent, thread, flagged, name, _ = record
        kind, text = flagged & KIND_MASK, self.name(name)
        is_accounted = kind <= WAIT or bool(flagged & BLOCKING)
        return SpanEvent(span, parent, kind, text, begin, None, step, is_accounted, thread)

    def _read_identity(self) -> None:
        """Read the identity if its first word shows a change, which happens once or twice."""
        generation = self._segment.read(IDENTITY_OFFSET, WORD.size)
        identity = self._segment.identity() if generation != self._generation else None
        if identity is not None:
            self._generation, self.identity = generation, identity

    def _read_failures(self) -> None:
        """Read uncaught exceptions: the one that ended the process, and one of a thread."""
        read = self._segment.read
        self.failure = parse_failure(read(*failure_location(MAIN_FAILURE)))
        self.thread_failure = parse_failure(read(*failure_location(THREAD_FAILURE)))

    def _read_clock(self) -> None:
        """The wall clock may be set at any time, so the monotonic begin is computed only once."""
        pairs = self._segment.clock_pairs()
        if not pairs:
            return
        if not self._begin_ns:
            monotonic, epoch = pairs[0]
            self._begin_ns = self.preamble.created_epoch_ns - (epoch - monotonic)
            if self._has_our_clocks and not self.is_written_by_agent:
                self.begin_offset_ns = epoch - monotonic
        monotonic, epoch = pairs[-1]
        self.epoch_offset_ns = epoch - monotonic
        if self.begin_offset_ns:
            # a stuck guest writes no clock pairs, and its last pair may be outdated
            self.epoch_offset_ns = time.time_ns() - time.monotonic_ns()


def _pid_here(preamble: Preamble) -> int | None:
    """The process's pid in this namespace; a container uses other pids."""
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
    """A folder of segments. Raises SegmentError if it cannot be created or is not private.

    With ``reap=False`` no lock is acquired and nothing is removed.
    """

    def __init__(self, path: str, *, reap: bool = True) -> None:
        self._held = open_observed(path)
        self._may_reap = reap
        self._allowance = process_allowance()
        self.path = path
        self.problems: dict[str, SegmentProblem] = {}
        self.num_reaped = 0
        self._seen_paths: set[str] = set()
        self._starting: dict[str, float] = {}  # file name -> when it was first seen
        self._listed_ns = 0  # modification time of the folder at the last listing
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
        """Whether files may have been added or removed since the last ``new_followers``."""
        return self._changed_ns() != self._listed_ns

    def new_followers(self) -> Iterator[Follower]:
        """Followers for segments that are new since the last call; problems are stored."""
        is_there = self._hold_again()
        if is_there and not self.reaps:
            self._take_lock()
        self._listed_ns = self._changed_ns()
        present = set(self._list())
        self._seen_paths &= present
        self.problems = {
            path: p for path, p in self.problems.items() if path in present or path == self.path
        }
        if not is_there:
            self._note_problem(f"cannot list {self.path}: it was removed")
        for path in sorted(present - self._seen_paths):
            self._seen_paths.add(path)
            try:
                yield Follower(path, self._held, self._allowance)
            except SegmentError as error:
                self.problems[path] = SegmentProblem(plain(path), error.kind, plain(str(error)))
            except Exception as error:  # noqa: BLE001 (one bad file must not hide the other files)
                self._log.error(f"opening {plain(path)}", error)
                reason = plain(f"cannot open {path} ({type(error).__name__}: {error})")
                self.problems[path] = SegmentProblem(plain(path), "strange", reason)

    def announce(self, url: str, certificate: str) -> None:
        """Write the address of this agent into the lock file, as long as it holds the lock."""
        self._address = url, certificate
        if self._lock is not None:
            self._lock.announce(*self._address)

    def reap(self, path: str) -> None:
        """Remove the segment of an exited process, if this agent holds the lock."""
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
        """Whether the folder exists. If it was removed and created again, the new one is opened."""
        try:
            status = os.stat(os.path.normpath(self.path), follow_symlinks=False)
            if (status.st_dev, status.st_ino) == self._held.id:
                return True
            held = open_observed(self.path)
        except (OSError, SegmentError):
            return False
        self.close()
        self._held = held  # the old folder stays open for its followers
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
        """Remove the file of a process that was killed while it created its segment."""
        now = time.monotonic()  # the wall clock may have been set since the file was written
        if now - self._starting.setdefault(name, now) > _ABANDONED_SECONDS:
            self._held.remove(name)
            del self._starting[name]

    def _take_lock(self) -> None:
        if not self._may_reap:
            return
        try:
            result = lock.acquire(self._held)
        except OSError as error:
            reason = error.strerror
            self._lock_problem = f"cannot lock {self.path}/{lock.LOCK_NAME} ({reason}): remove it"
            self._note_problem(self._lock_problem)
            return
        self._lock_problem = ""
        if isinstance(result, lock.FolderLock):
            self._lock, self.other_agent_pid = result, None
            result.announce(*self._address)
        elif result is not None:
            self.other_agent_pid = result.pid


def _parent(pid: int | None) -> int | None:
    """None if the parent is gone or not visible."""
    fields = [] if pid is None else stat_fields(f"/proc/{pid}/stat")
    return int(fields[PARENT]) if len(fields) > PARENT else None


def _is_running(pid: int, start_ticks: int) -> bool:
    """Whether the same process is alive; a zombie is not."""
    fields = stat_fields(f"/proc/{pid}/stat")
    is_whole = len(fields) > START_TICKS
    return is_whole and fields[STATE] not in {"Z", "X"} and int(fields[START_TICKS]) == start_ticks

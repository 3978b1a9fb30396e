"""A segment file: created by the guest, read by the agent, in a folder private to one user.

The writer reserves every byte before it maps the file. A full /dev/shm is then an error at start
and never a SIGBUS in the training loop. The reader uses pread and never maps the file: if another
process truncates the file, reads become shorter and nothing crashes.
"""

# no `from __future__ import annotations`: dataclasses resolve text annotations through
# sys.modules, which does not contain an attached guest
import errno
import itertools
import mmap
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dfx_agent.wire import failure, layout, variables
from dfx_agent.wire.records import RECORD, Record
from dfx_agent.wire.ring import (
    InflightWriter,
    RingReader,
    WriteBuffer,
    make_emit,
    make_end_span,
    open_slots,
    read_inflight,
)

SUFFIX = ".seg"
STARTING_SUFFIX = ".starting"
# files next to a segment: stacks and flight records of a blocked job, snapshots on request
SIDE_FILE_SUFFIXES = ".stacks", ".flight", ".wanted", ".snapshot"
STACKS_SUFFIX, FLIGHT_SUFFIX, WANTED_SUFFIX, SNAPSHOT_SUFFIX = SIDE_FILE_SUFFIXES
# O_NOFOLLOW applies to the last part of a path, so the path must not end in a slash
DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_INFLIGHT, _MAX_NAMES_BYTES = 1 << 14, 1 << 24


class SegmentError(Exception):
    """A folder or segment that cannot be used. The message is one line with the remedy."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        """Stable word: version, truncated, corrupted, permission, full, folder, size."""


@dataclass(frozen=True)
class Identity:
    """Which process of the job writes a segment. -1 and "" mean unknown."""

    run: str = ""  # name of the run
    role: str = ""  # such as "trainer" or "rollout"
    framework: str = ""  # selects the mapping of metric names
    host: str = ""  # name of the machine
    rank: int = layout.UNKNOWN  # rank in the job
    local_rank: int = layout.UNKNOWN  # rank on its machine
    world_size: int = layout.UNKNOWN  # number of ranks in the job
    node_rank: int = layout.UNKNOWN  # number of the machine in the job
    attempt: int = 0  # how often the launcher has restarted the job


@dataclass(frozen=True)
class Preamble:
    """The parts of a segment that never change after its creation."""

    pid: int
    start_ticks: int  # start of the process since boot. With ``boot_id`` it detects a reused pid
    pid_namespace: int  # inode; pids of different namespaces are not comparable
    boot_id: bytes
    uid: int
    created_epoch_ns: int  # Unix time of the creation
    guest_version: str
    num_inflight: int  # slots in the table of open spans
    num_records: int  # slots in the ring
    inflight_offset: int
    names_offset: int
    names_bytes: int
    ring_offset: int


def own_directory() -> str:
    """A private folder in /dev/shm (/tmp where there is none), one for each user."""
    base = "/dev/shm" if os.path.isdir("/dev/shm") else "/tmp"  # noqa: S108
    return os.path.join(base, f"dfx-{os.getuid()}")


def default_directory() -> str:
    """``$DFX_DIR``, else ``own_directory``."""
    return variables.DIR.value() or own_directory()


def prepare_directory(path: str) -> None:
    """Create the folder with mode 0700. Raises SegmentError if others can write to it."""
    os.close(open_own_directory(path))


def open_own_directory(path: str) -> int:
    """Open the private folder, creating it with mode 0700 if it is missing.

    Later changes to the path do not affect the descriptor. Raises SegmentError unless only this
    user can write to the folder. This holds for root too, who could write anywhere.
    """
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        fd = os.open(os.path.normpath(path), DIRECTORY_FLAGS)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise not_private(path) from None
        message = f"cannot create {path} ({error.strerror}): set DFX_DIR to a writable folder"
        raise SegmentError("folder", message) from None
    info = os.fstat(fd)
    if info.st_uid != os.getuid() or info.st_mode & 0o022:
        os.close(fd)
        raise not_private(path)
    if not os.access(path, os.W_OK | os.X_OK):
        os.close(fd)
        message = f"cannot write to {path} (Permission denied): set DFX_DIR to a writable folder"
        raise SegmentError("folder", message)
    return fd


def not_private(path: str) -> SegmentError:
    """The error for a folder that other users can write to or own."""
    message = f"{path} is not a private folder of uid {os.getuid()}: chmod go-w or set DFX_DIR"
    return SegmentError("folder", message)


def boot_id() -> bytes:
    """Id of this boot of the kernel, 16 bytes; zeros if the kernel does not provide it."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return bytes.fromhex(file.read().strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def pid_namespace() -> int:
    """Inode of this process's pid namespace. Pids are comparable only within one namespace."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


class SegmentWriter:
    """The guest's side of a segment. Only ``emit`` and ``inflight`` are used for each record."""

    def __init__(
        self,
        directory: str,
        identity: Identity,
        *,
        guest_version: str = "",
        num_records: int = layout.DEFAULT_NUM_RECORDS,
    ) -> None:
        fits = layout.MIN_NUM_RECORDS <= num_records <= layout.MAX_NUM_RECORDS
        if num_records & (num_records - 1) or not fits:
            raise SegmentError("size", f"{num_records} ring records: not a power of two in range")
        name = f"{os.getpid()}-{os.urandom(4).hex()}"
        self.path = os.path.join(directory, name + SUFFIX)
        starting = name + STARTING_SUFFIX
        folder = open_own_directory(directory)
        try:
            self._buffer = _reserve(folder, starting, directory, layout.total_bytes(num_records))
            self._begin(folder, starting, identity, guest_version, num_records)
        finally:
            os.close(folder)

    def _begin(
        self, folder: int, starting: str, identity: Identity, guest_version: str, num_records: int
    ) -> None:
        """Fill in what readers need, then rename the file to its final name."""
        self._names_used = self._num_names = 0
        self._clock = self._generation = 0
        self._numbers = itertools.count(1)
        self.emit = make_emit(self._buffer, layout.RING_OFFSET, num_records, self._numbers)
        self.inflight = InflightWriter(self._buffer, layout.INFLIGHT_OFFSET, layout.NUM_INFLIGHT)
        self.write_failure = failure.make_failure_writer(self._buffer)
        next_number, free_slots = self._numbers.__next__, self.inflight.free_slots
        self.write_buffer = WriteBuffer(
            self._buffer, layout.RING_OFFSET, num_records - 1, next_number, free_slots
        )
        self.end_span = make_end_span(self.write_buffer)
        try:
            self.add_clock_pair()
            self.write_identity(identity)
            self.set_word(layout.STATE_OFFSET, layout.STATE_LIVE)
            self._write_preamble(guest_version, num_records)
            complete = os.path.basename(self.path)
            os.rename(starting, complete, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(starting, dir_fd=folder)
            raise

    def _write_preamble(self, guest_version: str, num_records: int) -> None:
        layout.PREAMBLE.pack_into(
            self._buffer, 0,
            bytes(8), layout.BYTE_ORDER, layout.MAJOR, layout.MINOR, layout.HEADER_BYTES,
            layout.RECORD_BYTES, num_records, layout.NUM_INFLIGHT, layout.INFLIGHT_OFFSET,
            layout.NAMES_OFFSET, layout.NAMES_BYTES, layout.RING_OFFSET,
            layout.total_bytes(num_records), os.getpid(), start_ticks(os.getpid()) or 0,
            pid_namespace(), boot_id(), os.getuid(), 0, time.time_ns(), guest_version.encode()[:16],
        )  # fmt: skip
        self._buffer[: len(layout.MAGIC)] = layout.MAGIC

    def write_identity(self, identity: Identity) -> None:
        """Write the identity. Readers accept it when the numbers before and after it are equal."""
        self._generation += 1
        layout.IDENTITY.pack_into(
            self._buffer, layout.IDENTITY_OFFSET, self._generation,
            identity.rank, identity.local_rank, identity.world_size, identity.node_rank,
            identity.attempt, 0, _cut(identity.run, 96), _cut(identity.role, 32),
            _cut(identity.framework, 32), _cut(identity.host, 64), self._generation,
        )  # fmt: skip

    def add_name(self, name: str) -> int:
        """Append a name. Returns its id, or 0 when the table is full. The caller holds a lock."""
        data = _cut(name, layout.MAX_NAME_BYTES)
        end = self._names_used + layout.NAME_LENGTH.size + len(data)
        if end > layout.NAMES_BYTES or self._num_names >= layout.MAX_NAMES:
            self.add_to_word(layout.NAMES_DROPPED_OFFSET)
            return 0
        at = layout.NAMES_OFFSET + self._names_used
        self._buffer[at : at + end - self._names_used] = layout.NAME_LENGTH.pack(len(data)) + data
        self._names_used = end
        self._num_names += 1
        self.set_word(layout.NAMES_USED_OFFSET, end)
        return self._num_names

    def add_clock_pair(self) -> None:
        """Store (monotonic, Unix) time now, to convert time stamps. The first pair is permanent."""
        self._clock += 1
        pair = self._clock, time.monotonic_ns(), time.time_ns(), self._clock
        layout.CLOCK.pack_into(self._buffer, layout.clock_offset(self._clock), *pair)

    def set_word(self, offset: int, value: int) -> None:
        layout.WORD.pack_into(self._buffer, offset, value)

    def add_to_word(self, offset: int) -> None:
        """Increment a rare counter; two threads at the same instant may count one."""
        (value,) = layout.WORD.unpack_from(self._buffer, offset)
        layout.WORD.pack_into(self._buffer, offset, value + 1)

    def open_spans(self) -> list[Record]:
        """Spans that this process has open now."""
        end = layout.INFLIGHT_OFFSET + layout.NUM_INFLIGHT * layout.RECORD_BYTES
        return open_slots(self._buffer[layout.INFLIGHT_OFFSET : end])

    def num_written(self) -> int:
        """Number of records written so far."""
        return int(repr(self._numbers)[len("count(") : -1]) - 1  # does not use up a number

    def finish(self, state: int = layout.STATE_CLOSED) -> None:
        """Mark the end: the process exits in order, or the guest is detached."""
        self.set_word(layout.STATE_OFFSET, state)

    def close(self) -> None:
        """Unmap the file only. A forked child uses it, because its parent continues to write."""
        self._buffer.close()


class SegmentReader:
    """The agent's side of one segment file. Raises SegmentError if the file is not usable.

    With the descriptor ``folder``, only the file name of ``path`` is used.
    """

    def __init__(self, path: str, folder: int | None = None) -> None:
        self.path = path
        self._folder = folder
        self._file: tuple[int, int] | None = None  # device and inode, if opened for each read
        self._fd = _open_read_only(path, folder)
        try:
            self.preamble = self._read_preamble()
        except SegmentError:
            self.close()
            raise
        self.ring = RingReader(self.read, self.preamble.ring_offset, self.preamble.num_records)
        self._names: list[str] = [""]
        self._names_end = 0

    def read(self, offset: int, size: int) -> bytes:
        if self._fd < 0:
            with self.opened() as is_present:
                return self.read(offset, size) if is_present else b""
        return os.pread(self._fd, size, offset) if size > 0 <= offset else b""

    def open_on_demand(self) -> None:
        """Close the descriptor now and open the file again for each read."""
        status = os.fstat(self._fd)
        self._file = status.st_dev, status.st_ino
        self._close_descriptor()

    @contextmanager
    def opened(self) -> Iterator[bool]:
        """Open the file once for several reads. Yields whether the same file still exists."""
        if self._fd >= 0 or self._file is None:
            yield self._fd >= 0
            return
        self._fd = self._reopen()
        try:
            yield self._fd >= 0
        finally:
            self._close_descriptor()

    def poll(self, limit: int = 1 << 16) -> list[Record]:
        """New records; see ``RingReader.poll``."""
        return list(RECORD.iter_unpack(self.ring.poll(limit)))

    def drain(self) -> list[Record]:
        """All remaining records after the writer exited; see ``RingReader.drain``."""
        return list(RECORD.iter_unpack(self.ring.drain()))

    def inflight(self) -> list[Record]:
        """Spans that are open now, as records with t1_ns 0."""
        return read_inflight(self.read, self.preamble.inflight_offset, self.preamble.num_inflight)

    def name(self, name_id: int) -> str | None:
        """Text of a name id; None if the table does not contain it (full or corrupted)."""
        if name_id >= len(self._names):
            self._names.extend(self._new_names())
        return self._names[name_id] if 0 < name_id < len(self._names) else None

    def texts(self, after: int) -> list[str]:
        """Texts of the name table with ids above ``after``, in order of their ids."""
        self._names.extend(self._new_names())
        return self._names[after:]

    def identity(self) -> Identity | None:
        """Who writes this segment; None while the guest is writing it."""
        data = self.read(layout.IDENTITY_OFFSET, layout.IDENTITY.size)
        if len(data) < layout.IDENTITY.size:
            return None
        head, rank, local, world, node, attempt, _, run, role, framework, host, tail = (
            layout.IDENTITY.unpack(data)
        )
        if head != tail or not head:
            return None
        names = (_text(run), _text(role), _text(framework), _text(host))
        return Identity(*names, rank, local, world, node, attempt)

    def live_words(self) -> tuple[int, int, int, int, int]:
        """Return (state, bytes of names, names dropped, open spans dropped, guest errors)."""
        data = self.read(layout.STATE_OFFSET, layout.LIVE.size)
        return layout.LIVE.unpack(data.ljust(layout.LIVE.size, b"\0"))

    def clock_pairs(self) -> list[tuple[int, int]]:
        """Pairs (monotonic ns, Unix ns): that of the creation, then the latest 15, oldest first."""
        data = self.read(layout.CLOCK_OFFSET, layout.CLOCK.size * layout.NUM_CLOCKS)
        data = data[: len(data) // layout.CLOCK.size * layout.CLOCK.size]
        rows = sorted(row for row in layout.CLOCK.iter_unpack(data) if row[0] and row[0] == row[3])
        return [(monotonic, epoch) for _, monotonic, epoch, _ in rows]

    def close(self) -> None:
        self._close_descriptor()
        self._file = None

    def _close_descriptor(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _reopen(self) -> int:
        """Open the same file again; -1 if the file is gone or another one has its name."""
        try:
            fd = _open_read_only(self.path, self._folder)
        except SegmentError:
            return -1
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) == self._file:
            return fd
        os.close(fd)
        return -1

    def _new_names(self) -> Iterator[str]:
        used = min(self.live_words()[1], self.preamble.names_bytes)
        data = self.read(self.preamble.names_offset + self._names_end, used - self._names_end)
        at = 0
        while at + layout.NAME_LENGTH.size <= len(data):
            (length,) = layout.NAME_LENGTH.unpack_from(data, at)
            end = at + layout.NAME_LENGTH.size + length
            if length > layout.MAX_NAME_BYTES or end > len(data):
                break
            yield _text(data[at + layout.NAME_LENGTH.size : end])
            self._names_end += end - at
            at = end

    def _read_preamble(self) -> Preamble:
        data = self.read(0, layout.PREAMBLE.size)
        if len(data) < layout.PREAMBLE.size or data[:8] != layout.MAGIC:
            raise SegmentError("corrupted", f"{self.path} is not a dfx segment: remove it")
        (
            _, order, major, _, header, record, records, inflight, inflight_at, names_at,
            names_bytes, ring_at, total, pid, ticks, namespace, boot, uid, _, created, version,
        ) = layout.PREAMBLE.unpack(data)  # fmt: skip
        if order != layout.BYTE_ORDER:
            raise SegmentError("corrupted", f"{self.path} is from a machine of other byte order")
        if major != layout.MAJOR:
            message = (
                f"{self.path} has wire version {major}, this agent reads {layout.MAJOR}: "
                "use the dfx-agent version that started the job"
            )
            raise SegmentError("version", message)
        ends = (
            inflight_at + inflight * layout.RECORD_BYTES,
            names_at + names_bytes,
            ring_at + records * layout.RECORD_BYTES,
        )
        power_of_two = records > 0 and records & (records - 1) == 0
        if (
            record != layout.RECORD_BYTES
            or not power_of_two
            or records > layout.MAX_NUM_RECORDS
            or min(inflight_at, names_at, ring_at) < header
            or max(ends) > total
            or inflight > _MAX_INFLIGHT
            or names_bytes > _MAX_NAMES_BYTES
        ):
            raise SegmentError("corrupted", f"{self.path} has an impossible layout: remove it")
        if os.fstat(self._fd).st_size < total:
            raise SegmentError("truncated", f"{self.path} is shorter than it says: remove it")
        return Preamble(
            pid, ticks, namespace, boot, uid, created, _text(version), inflight, records,
            inflight_at, names_at, names_bytes, ring_at,
        )  # fmt: skip


def _reserve(folder: int, name: str, directory: str, size: int) -> mmap.mmap:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(name, flags, 0o600, dir_fd=folder)
    except OSError as error:
        message = (
            f"cannot create {directory}/{name} ({error.strerror}): set DFX_DIR to a writable folder"
        )
        raise SegmentError("folder", message) from None
    try:
        os.posix_fallocate(fd, 0, size)
        return mmap.mmap(fd, size, mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
    except OSError as error:
        os.unlink(name, dir_fd=folder)
        message = (
            f"no room for {size >> 10} KiB in {directory} ({error.strerror}): "
            "free /dev/shm or set DFX_DIR to a folder with space"
        )
        raise SegmentError("full", message) from None
    finally:
        os.close(fd)


def _open_read_only(path: str, folder: int | None) -> int:
    try:
        return open_regular(path if folder is None else os.path.basename(path), folder)
    except PermissionError:
        message = f"{path} belongs to another user: run the agent as that user or as root"
        raise SegmentError("permission", message) from None
    except NotRegularError:
        message = f"{path} is not a regular file: remove it"
        raise SegmentError("corrupted", message) from None
    except OSError as error:
        raise SegmentError("unreadable", f"cannot open {path}: {error.strerror}") from None


class NotRegularError(OSError):
    """The path is a pipe, a folder or a device, not a file."""


def open_regular(name: str, folder: int | None = None) -> int:
    """Open a regular file to read it, without following links or blocking. Raises OSError.

    ``folder`` is a descriptor of the folder that contains ``name``.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(name, flags, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotRegularError(errno.EINVAL, "not a regular file")
    return fd


def _cut(text: str, size: int) -> bytes:
    return text.encode("utf-8", "replace")[:size]


def _text(data: bytes) -> str:
    text = data.rstrip(b"\0").decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "\ufffd" for c in text)

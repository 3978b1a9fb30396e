"""The bytes of a segment: one file per training process, one writer, any number of readers.

    0      preamble    128 B   magic, version, byte order, offsets, pid, start time, boot id
    128    identity    264 B   run, role, rank, ...; first and last word: the same generation
    512    live words   64 B   state, bytes of names in use, what the guest had to drop
    1024   clock pairs 512 B   16 x (n, monotonic ns, epoch ns, n): the first and the latest 15
    1536   failures    2 x 832 B: the exception that ended the process, the first of a thread
    4096   in-flight   256 slots of 64 B: spans that are open now (readable after kill -9)
    20480  names       64 KiB, append-only: (length u16, UTF-8) in order of ids 1, 2, ...
    86016  ring        num_records x 64 B

Byte order and alignment are native: an 8-byte store is then one store, and ``@`` packs faster than
``<`` (198 against 243 ns). A segment never leaves its host; the byte-order word only serves to
refuse a copy from another machine. The magic is written last, so a file with the magic is complete.
"""

from __future__ import annotations

import struct

MAGIC = b"dfxwire\n"
BYTE_ORDER = 0x01020304
MAJOR, MINOR = 1, 3

HEADER_BYTES = 4096
RECORD_BYTES = 64
NUM_INFLIGHT = 256
NAMES_BYTES = 64 * 1024
DEFAULT_NUM_RECORDS = 1 << 14
MIN_NUM_RECORDS, MAX_NUM_RECORDS = 64, 1 << 22

INFLIGHT_OFFSET = HEADER_BYTES
NAMES_OFFSET = INFLIGHT_OFFSET + NUM_INFLIGHT * RECORD_BYTES
RING_OFFSET = NAMES_OFFSET + NAMES_BYTES

# magic, byte order, major, minor, header bytes, record bytes, records, in-flight slots,
# in-flight offset, names offset, names bytes, ring offset, total bytes,
# pid, start ticks, pid namespace, boot id, uid, -, created epoch ns, guest version
PREAMBLE = struct.Struct("@8sIHH8IQ3Q16sIIQ16s")
CREATED_OFFSET = PREAMBLE.size - 24  # Unix nanoseconds, before the guest's version
# Guest version in a segment that an agent made from OpenTelemetry spans. A job sends spans when
# they are over, so the segment does not show whether the process is alive.
VERSION_OF_SPAN_SEGMENT = "spans"
IDENTITY_OFFSET = 128
# generation, rank, local rank, world size, node rank, attempt, -, run, role, framework, host, again
IDENTITY = struct.Struct("@Q5iI96s32s32s64sQ")

WORD = struct.Struct("@Q")
STATE_OFFSET = 512
LIVE = struct.Struct("@5Q")
NAMES_USED_OFFSET = STATE_OFFSET + 8
NAMES_DROPPED_OFFSET = STATE_OFFSET + 16
INFLIGHT_DROPPED_OFFSET = STATE_OFFSET + 24
GUEST_ERRORS_OFFSET = STATE_OFFSET + 32

# detached: the guest has left, the process continues
STATE_STARTING, STATE_LIVE, STATE_CLOSED, STATE_DETACHED = 0, 1, 2, 3

CLOCK_OFFSET = 1024
CLOCK = struct.Struct("@4Q")
NUM_CLOCKS = 16

FAILURE_OFFSET = 1536
# written, monotonic ns, line, -, type, message, file, function, thread, written
FAILURE = struct.Struct("@2QI4x48s400s256s64s32sQ")
MAIN_FAILURE, THREAD_FAILURE = 0, 1  # slots

NAME_LENGTH = struct.Struct("@H")
MAX_NAME_BYTES = 200
MAX_NAMES = 0xFFFF

UNKNOWN = -1


def clock_offset(number: int) -> int:
    """Offset of clock pair ``number`` (from 1). The first is permanent, the others rotate."""
    slot = 1 + number % (NUM_CLOCKS - 1) if number > 1 else 0
    return CLOCK_OFFSET + slot * CLOCK.size


def total_bytes(num_records: int) -> int:
    """Size of a segment file with this many ring records."""
    return RING_OFFSET + num_records * RECORD_BYTES

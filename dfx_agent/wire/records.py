"""One 64-byte record: what is in the ring and in the in-flight table.

    0   head    u64  sequence number, from 1
    8   t0_ns   u64  begin, CLOCK_MONOTONIC of the guest
    16  t1_ns   u64  end (0 in the in-flight table)
    24  value   f64  scalar, tokens, queue depth, policy version; 0.0 for a span
    32  step    i64  training step, NO_STEP when unknown
    40  span    u32  id within the segment, from 1; 0 none
    44  parent  u32  span that was open in the same context, 0 none
    48  thread  u32  native thread id
    52  kind    u16  one of the kinds below; FAILED is added when an exception closed the span
    54  name    u16  id in the name table
    56  tail    u64  sequence number again

``pack_into`` zero-fills the 64 bytes and then writes the fields in order, so head == tail == the
expected number holds only for a whole record. Readers get plain tuples in this order: a NamedTuple
per record would triple the cost of reading.
"""

from __future__ import annotations

import struct

RECORD = struct.Struct("@QQQdqIIIHHQ")

# t0_ns, t1_ns, span, parent, kind, name: what a span needs, in a third of the time
SPAN_FIELDS = struct.Struct("@8xQQ16xII4xHH8x")

# head, t0_ns, t1_ns, value, step, span, parent, thread, kind, name, tail
Record = tuple[int, int, int, float, int, int, int, int, int, int, int]

NO_STEP = -1

STAGE = 1
WAIT = 2
SCALAR = 3
TOKENS = 4
QUEUE = 5
POLICY_VERSION = 6
STEP = 7  # value: processor seconds that the thread has had so far
# A collective as the host saw it: t0 is when this rank arrived, t1 when the call gave the host
# back (with BLOCKING the collective was over then, without it was only issued). value is bytes,
# step the group's sequence number (NO_STEP unknown; PEER - r of a send to or a receive from rank r
# of the job, which have none), name is "op@group". A span of 0 means that the time belongs to the
# wait around it.
COLLECTIVE = 8
PEER = -2
# Blocked in Work.wait of a collective that was issued before; step and name are those of it.
COLLECTIVE_WAIT = 9
COLLECTIVES = frozenset({COLLECTIVE, COLLECTIVE_WAIT})
# operation of a backward's gradients that DDP reduces: one record for all of its buckets
DDP_GRADIENTS = "ddp_gradients"
# A process group now: name is the group, step the collectives enqueued, value those completed.
GROUP = 10
COUNT = 11  # value is added to the counter of this name
GAUGE = 12  # value replaces the one of this name
# Name of TOKENS that the guest counts itself: what trained forward passes took in, with padding.
FORWARD_TOKENS = "forward"
# name of a wait for the answer of a server, where a client of one blocks the main thread
REMOTE_WAIT = "remote"
# name of a wait for a batch of torch's DataLoader, while its queue is empty
DATA_LOADER_WAIT = "data_loader"
# One number about a batch at a boundary: name is "boundary/column", thread the index of the field,
# value its value, span numbers the crossing, parent counts its records. A crossing that was not
# looked at has one record, "is_left_out".
LEDGER = 14
LEDGER_MODULUS = (1 << 53) - 111  # a prime; hashes below it add up and fit in a float64
LEDGER_FIELDS = (
    "num_rows", "num_unread", "num_sampled", "schema", "shapes", "order", "multiset", "num_groups",
    "smallest_group", "largest_group", "mask_sum", "mask_size", "num_misaligned", "num_nonfinite",
    "values", "aligned", "is_left_out",
)  # fmt: skip

# How long a stream of a device stood for a collective: value in seconds. t0 is when the host issued
# it, t1 - t0 how long the device was in it since this rank's stream had arrived; step, parent and
# name are those of the COLLECTIVE.
DEVICE_TIME = 15
# An event loop was asked at t0 to call back and did so at t1; value is the seconds between. With
# FAILED it has not done so by t1, and the name is who holds it.
LOOP_LAG = 16
# Who held it meanwhile is the name, from t0 to t1; value is the seconds between.
LOOP_HELD = 17
# counters with this prefix are stack samples by place, see shim/code_samples.py
CODE_COUNTER = "code/"
LOOP_KINDS = frozenset({LOOP_LAG, LOOP_HELD})

BLOCKING = 0x4000
FROM_ATTACH = 0x4000  # of a STEP: its number counts from the attach, the job has not said any
COUNTED = 0x8000  # of a STEP: it began as the optimizer ended the one before, and may be none
FAILED = 0x8000
KIND_MASK = 0x3FFF

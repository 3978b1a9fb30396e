"""One 64-byte record, as stored in the ring and in the table of open spans.

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

``pack_into`` zero-fills the 64 bytes and then writes the fields in order. Head and tail therefore
contain the expected number only in a complete record. Readers get plain tuples in this order: one
NamedTuple per record would triple the cost of reading.
"""

from __future__ import annotations

import struct

RECORD = struct.Struct("@QQQdqIIIHHQ")

# t0_ns, t1_ns, span, parent, kind, name: enough for a span, unpacked in a third of the time
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
STEP = 7  # value: CPU seconds of the thread since its start
# A collective on the host.
#   t0, t1  the call began, the call returned; with BLOCKING the collective was over at t1
#   value   bytes
#   step    sequence number in the group; NO_STEP unknown; PEER - r for a send to or a receive from
#           rank r of the job, which have no number
#   name    "op@group"
#   span    0 if the time already belongs to the wait around the call
COLLECTIVE = 8
PEER = -2
# Blocked in Work.wait of an earlier collective; step and name are those of that collective.
COLLECTIVE_WAIT = 9
COLLECTIVES = frozenset({COLLECTIVE, COLLECTIVE_WAIT})
# operation name of DDP's gradient reduction: one record for all buckets of a backward pass
DDP_GRADIENTS = "ddp_gradients"
# State of a process group: name is the group, step its collectives enqueued, value those completed.
GROUP = 10
COUNT = 11  # value is added to the counter of this name
GAUGE = 12  # value replaces the gauge of this name
# Name of the TOKENS that the guest counts: inputs of forward passes for training, with padding.
FORWARD_TOKENS = "forward"
# Name of the COUNT of samples in forward passes for training: rows of a model's first input.
FORWARD_SAMPLES = "forward/samples"
# name of a wait for a server's answer in the main thread
REMOTE_WAIT = "remote"
# name of a wait for the next batch of torch's DataLoader
DATA_LOADER_WAIT = "data_loader"
# One number about a batch at a boundary. name: "boundary/column". thread: index of the field.
# value: its value. span: number of the batch. parent: how many records the batch has. A batch that
# was not inspected has one record, "is_left_out".
LEDGER = 14
LEDGER_MODULUS = (1 << 53) - 111  # a prime; hashes below it add up and fit in a float64
LEDGER_FIELDS = (
    "num_rows", "num_unread", "num_sampled", "schema", "shapes", "order", "multiset", "num_groups",
    "smallest_group", "largest_group", "mask_sum", "mask_size", "num_misaligned", "num_nonfinite",
    "values", "aligned", "is_left_out",
)  # fmt: skip

# How long a device stream was in a collective: value in seconds. t0: the host issued it. t1 - t0:
# time in it since this rank's stream arrived. step, parent and name: those of the COLLECTIVE.
DEVICE_TIME = 15
# An event loop was asked at t0 to call back and did so at t1; value is the seconds between. With
# FAILED it has not called back by t1, and the name is the code that blocks the loop.
LOOP_LAG = 16
# The code that blocked the loop is the name, from t0 to t1; value is the seconds between.
LOOP_HELD = 17
# counters with this prefix are stack samples by code location, see shim/code_samples.py
CODE_COUNTER = "code/"
# Counters of samples by score: "scores/boundary/edge/data source". Each sample is counted at the
# smallest edge that is not below its score, else at "+Inf". Instead of an edge, "sum" adds up the
# positive scores, and "negative_sum" the others without their sign: a counter never falls.
SCORE_COUNTER = "scores/"
SCORE_EDGES = (
    -1000.0, -100.0, -10.0, -5.0, -2.0, -1.0, -0.8, -0.6, -0.4, -0.2, 0.0,
    0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 2.0, 5.0, 10.0, 100.0, 1000.0,
)  # fmt: skip
LOOP_KINDS = frozenset({LOOP_LAG, LOOP_HELD})

BLOCKING = 0x4000
FROM_ATTACH = 0x4000  # of a STEP: its number counts from the attach, the job has not set any
COUNTED = 0x8000  # of a STEP: started by the end of the optimizer step before, may be no step
FAILED = 0x8000
KIND_MASK = 0x3FFF

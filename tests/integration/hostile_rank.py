"""A process whose segment is valid and whose records are not: NaN, impossible numbers, garbage.

hostile_rank.py        run "strange", for ever; says "ready" once it has written all kinds
"""

import math
import os
import random
import struct
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from dfx_agent.wire import Identity, SegmentWriter
from dfx_agent.wire.records import (
    BLOCKING,
    COLLECTIVE,
    COUNT,
    GAUGE,
    GROUP,
    LEDGER,
    PEER,
    QUEUE,
    SCALAR,
    STAGE,
    STEP,
    TOKENS,
    WAIT,
)
from dfx_agent.wire.segment import default_directory

KINDS = (STAGE, WAIT, STEP, SCALAR, TOKENS, QUEUE, COUNT, COLLECTIVE | BLOCKING, GROUP, GAUGE,
         LEDGER, 31, 0x8000)  # fmt: skip
NAMES = ("rollout/ids", "actor/grad_norm", "all_reduce@0", "send@0", 'a\n"\\\x1b[31m<b>', "é")
VALUES = (math.nan, math.inf, -math.inf, -1.0, 1.7e308, 2.0**70, 3.0)
STEPS = (-(2**63), -PEER, -1, 0, 1, 7, 2**63 - 1)


def main() -> None:
    folder = default_directory()
    identity = Identity(run="strange", role="trainer", framework="verl", rank=0, world_size=2)
    segment = SegmentWriter(folder, identity, num_records=512)
    names = [segment.add_name(name) for name in NAMES]
    noise = random.Random(5)
    spoil(folder)
    for number in range(10**9):
        now = time.monotonic_ns()
        for step, kind in enumerate((STEP, STAGE, LEDGER)):
            value = math.nan if kind == LEDGER else 0.0
            segment.emit(now, now, value, number, number * 3 + step, 0, 1, kind, names[0])
        for value in VALUES:
            kind, step = noise.choice(KINDS), noise.choice(STEPS)
            begin = noise.choice((now, 0, now + 10**12, 2**64 - 1))
            segment.emit(begin, now, value, step, noise.randrange(99), noise.randrange(99), 1, kind,
                         noise.choice((*names, 60_000)))  # fmt: skip
        if number == 20:
            print("ready", flush=True)
        time.sleep(0.05)


def spoil(folder: str) -> None:
    """Files beside it: no UTF-8 in a name, FIFOs where files are expected, garbage."""
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe.seg")).write_bytes(b"dfxwire\n")
    Path(folder, "x\n<img src=x>.seg").write_bytes(struct.pack("Q", 7))
    for name in ("fifo.seg", f"{os.getpid()}.stacks", f"{os.getpid()}.flight"):
        os.mkfifo(Path(folder, name))


if __name__ == "__main__":
    main()

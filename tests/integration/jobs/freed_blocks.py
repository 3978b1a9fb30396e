"""Frees many small blocks below one that stays, so that glibc keeps them; then trims when told.

``freed_blocks.py GO``: prints how much was freed; when the file GO is there it calls malloc_trim(0)
and prints how many bytes of anonymous memory the kernel got back.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
from pathlib import Path

import dfx_agent.shim as dfx
from dfx_agent.shim import heap

NUM_BLOCKS, BLOCK_BYTES = 400_000, 1000
heap.PERIOD_SECONDS = 0.5


def anonymous_bytes() -> int:
    _, _, rest = Path("/proc/self/status").read_text().partition("\nRssAnon:")
    return int(rest.split()[0]) * 1024


async def main(go: Path) -> None:
    dfx.set_step(0)
    blocks = [bytearray(BLOCK_BYTES) for _ in range(NUM_BLOCKS)]
    last = blocks[-1]
    del blocks
    dfx.set_step(1)
    print(NUM_BLOCKS * BLOCK_BYTES, flush=True)
    while not go.exists():  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.1)
    before = anonymous_bytes()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    print(before - anonymous_bytes(), flush=True)
    await asyncio.sleep(600)
    del last


dfx.init(role="orchestrator", rank=0)
asyncio.run(main(Path(sys.argv[1])))

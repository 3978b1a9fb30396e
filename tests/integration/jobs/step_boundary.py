"""An asyncio orchestrator with a step boundary of 25 phases; three of them hold its event loop.

``step_boundary.py GO``: waits until the file GO is there, passes one step and prints how long each
phase took by its own clock; then it stands in the next step until it is killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dfx_agent.shim as dfx

HOLD_SECONDS = 1.0
ROWS = [{"number": number, "text": "x" * 20} for number in range(100_000)]


def passed(since: float) -> bool:
    return time.perf_counter() - since >= HOLD_SECONDS


async def serialise() -> None:
    begin = time.perf_counter()
    while not passed(begin):
        json.dumps(ROWS)


async def concatenate() -> None:
    begin, text = time.perf_counter(), ""
    while not passed(begin):
        text = "a line of the report\n" * 100 + text


def count(begin: float) -> None:
    """For as long as the others: a thread that ended within one turn would leave no crowd."""
    while not passed(begin):
        sum(number * number for number in range(10_000))


async def fan_out() -> None:
    loop, begin = asyncio.get_running_loop(), time.perf_counter()
    with ThreadPoolExecutor(256) as pool:
        await asyncio.gather(*[loop.run_in_executor(pool, count, begin) for _ in range(256)])


async def give_way() -> None:
    await asyncio.sleep(0.02)


def phases() -> dict:
    culprits = {4: ("serialise", serialise), 11: ("concatenate", concatenate)}
    culprits[19] = ("fan_out", fan_out)
    return dict(culprits.get(n, (f"phase_{n:02}", give_way)) for n in range(25))


async def main(go: Path) -> None:
    dfx.set_step(0)
    while not go.exists():  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.1)
    dfx.set_step(1)
    took = {}
    for name, phase in phases().items():
        begin = time.perf_counter()
        with dfx.stage(name):
            await phase()
        took[name] = time.perf_counter() - begin
        await asyncio.sleep(0.1)
    dfx.set_step(2)
    print(json.dumps(took), flush=True)
    await asyncio.sleep(600)


dfx.init(role="orchestrator", rank=0)
asyncio.run(main(Path(sys.argv[1])))

"""attach into a process whose event loop runs already: found, asked, and who held it named."""

from __future__ import annotations

import subprocess
import sys

import pytest
from live_processes import DFX_AGENT, job_environment, started, until

from dfx_agent.wire import SegmentReader
from dfx_agent.wire.records import LOOP_HELD, LOOP_LAG, RECORD

JOB = """
import asyncio, sys, threading, time

def packs():
    end = time.monotonic() + 0.7
    while time.monotonic() < end:
        pass

async def main():
    while True:
        await asyncio.sleep(0.3)
        packs()

{run}
"""
ASYNCIO = "asyncio.run(main())"
UVLOOP = """
import uvloop
loop = uvloop.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
asyncio.run_coroutine_threadsafe(main(), loop).result()
"""


class Lags:
    """What the guest in the job has recorded of loops so far."""

    def __init__(self, folder) -> None:
        (path,) = folder.glob("*.seg")
        self._reader = SegmentReader(str(path))
        self.num_lags = 0
        self.holders: set[str] = set()

    def read(self) -> Lags:
        while part := self._reader.ring.poll():
            for record in RECORD.iter_unpack(bytes(part)):
                self.num_lags += record[8] == LOOP_LAG
                if record[8] == LOOP_HELD:
                    self.holders.add(self._reader.name(record[9]) or "")
        return self


@pytest.mark.parametrize("run", [ASYNCIO, UVLOOP], ids=["asyncio", "uvloop"])
def test_a_loop_that_began_before_the_guest_is_watched(run, tmp_path, dfx_dir):
    if "uvloop" in run:
        pytest.importorskip("uvloop", reason="no uvloop; pip install '.[test]' installs it")
    env = job_environment()
    with started([sys.executable, "-c", JOB.format(run=run)], tmp_path, env) as job:
        command = [*DFX_AGENT, "attach", "--pid", str(job.pid), "--inject-only",
                   "--grace-seconds", "300"]  # fmt: skip
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert ": attached in " in done.stderr, done.stderr
        lags = Lags(dfx_dir)
        until(lambda: any("packs" in name for name in lags.read().holders), "it is named", 60)
        assert lags.num_lags

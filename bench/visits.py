"""One training process, a thousand attaches and detaches: failed loops and memory of the job.

The job trains and, in a thread, iterates over ``sys.modules`` without a pause: a table that changes
meanwhile is an exception in the job. Each visit injects the full guest with ptrace, waits for 20
steps, and removes it. Memory is the job's resident memory.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.measurement import Bar, Result, report
from dfx_agent import __version__
from dfx_agent.attach.bring import Order
from dfx_agent.attach.inject import inject

_NUM_VISITS, _NUM_QUICK = 1000, 20
# warm-up visits of the allocator, and visits after them for which the target is stated
_NUM_FIRST, _NUM_COMPARED = 5, 25
_START_SECONDS, _WAIT_SECONDS = 90.0, 30.0
_MAX_GROWN_MIB = 30.0
_LEAVE = """
import os
os._dfx_residue["guest"].modules["dfx_agent.shim.attached"].leave()
"""
_JOB = """
import os, sys, threading, time
import torch
num_loops = num_errors = 0
def go_through():
    global num_loops, num_errors
    while True:
        try:
            for name in sys.modules:
                pass
        except RuntimeError:
            num_errors += 1
        num_loops += 1
torch.set_num_threads(1)
sys.setswitchinterval(1e-4)
threading.Thread(target=go_through, daemon=True).start()
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters())
batch, num_steps = torch.randn(32, 64), 0
while True:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    num_steps += 1
    if num_steps % 10 == 0:
        text = f"{num_steps} {num_loops} {num_errors}"
        with open(sys.argv[1] + ".new", "w") as out:
            out.write(text)
        os.replace(sys.argv[1] + ".new", sys.argv[1])
"""


class _Job:
    """A process that trains; what it counts is in a file."""

    def __init__(self, folder: str) -> None:
        self._file = Path(folder, "counts")
        self._popen = subprocess.Popen([sys.executable, "-c", _JOB, str(self._file)])
        self.pid = self._popen.pid

    def counts(self) -> tuple[int, int, int]:
        """Steps, loops through ``sys.modules``, loops that failed."""
        if self._popen.poll() is not None:
            raise RuntimeError(f"the job ended with {self._popen.returncode}")
        steps, loops, errors = self._file.read_text().split() if self._file.exists() else "000"
        return int(steps), int(loops), int(errors)

    def train(self, num_steps: int) -> None:
        """Until it has made so many more."""
        wanted = self.counts()[0] + num_steps
        end = time.monotonic() + _START_SECONDS
        while self.counts()[0] < wanted:
            if time.monotonic() > end:
                raise RuntimeError("the job makes no steps")
            time.sleep(0.005)

    def resident_mib(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def end(self) -> None:
        self._popen.kill()
        self._popen.wait()


def measure(*, quick: bool) -> list[Result]:
    num_visits = _NUM_QUICK if quick else _NUM_VISITS
    resident_mib = []
    with tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm") as folder:
        lease = os.open(os.path.join(folder, "agent.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lease, fcntl.LOCK_EX)
        job = _Job(folder)
        try:
            job.train(100)
            _, loops_before, errors_before = job.counts()  # torch loads modules at its first steps
            for _ in range(num_visits):
                resident_mib.append(job.resident_mib())
                _visit(job, folder)
            _, num_loops, num_errors = job.counts()
        finally:
            job.end()
            os.close(lease)
    num_failed = num_errors - errors_before
    return _rows(num_visits, num_loops - loops_before, num_failed, resident_mib)


def _visit(job: _Job, folder: str) -> None:
    order = Order(
        folder,
        folder,
        version=__version__,
        identity_fields={},
        grace_seconds=600.0,
        is_compiled=True,
    )
    inject(job.pid, order.source)
    answer = order.answer(_WAIT_SECONDS)
    if answer is None or answer.state != "attached":
        raise RuntimeError(f"the guest did not attach: {answer}")
    job.train(20)
    inject(job.pid, _LEAVE)
    note = Path(answer.segment).with_suffix(".attached")
    end = time.monotonic() + _WAIT_SECONDS
    while note.exists():
        if time.monotonic() > end:
            raise RuntimeError("the guest did not leave")
        time.sleep(0.005)
    os.unlink(answer.segment)  # an agent removes it later
    job.train(10)


def _rows(num_visits: int, num_loops: int, num_errors: int, mib: list[float]) -> list[Result]:
    no_spread = {"low": 0.0, "high": 0.0}
    loops = f"{num_visits} visits, {num_loops:,} loops through sys.modules"
    compared = min(_NUM_COMPARED, len(mib) - _NUM_FIRST - 1)
    first = mib[_NUM_FIRST + compared] - mib[0]
    total = mib[-1] - mib[0]
    return [
        Result("visits: loops of the job that failed", num_errors, "", num_loops, no_spread,
               bar=Bar(0), note=loops),
        Result(f"visits: memory after {_NUM_FIRST + compared}", first, "MiB", 1, no_spread,
               bar=Bar(_MAX_GROWN_MIB), note=f"resident at first {mib[0]:.0f} MiB"),
        Result(f"visits: memory after {len(mib) - 1}", total, "MiB", 1, no_spread),
    ]  # fmt: skip


if __name__ == "__main__":
    report(measure)

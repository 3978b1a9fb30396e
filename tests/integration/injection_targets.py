"""Programs to inject into, on any interpreter: each checks its own results, bit for bit.

A program runs as ``python -c``, so it also works in another root, and shares a file with
us: a page of [rounds done, wrong results], 64 bits each, then a byte for each payload that ran.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from test_interpreters import FOUND

_PAGE_BYTES = 4096
_COMMON = """
import mmap, sys, time
shared = memoryview(mmap.mmap(FD, 4096)).cast("Q")

def count(is_right=True):
    shared[0] += 1
    if not is_right:
        shared[1] += 1

def compute(rounds=3000):
    x, y = 0.3, 1
    for _ in range(rounds):
        x = 3.9 * x * (1.0 - x)
        y = y * 6364136223846793005 % 18446744073709551557
    return x.hex(), y

expected = compute()
"""
PROGRAMS = {
    "cpu": """
while True:
    count(compute() == expected)
""",
    "sleep": """
while True:
    begin = time.monotonic()
    time.sleep(0.02)
    count(time.monotonic() - begin >= 0.02)
""",
    "asyncio": """
import asyncio
async def work(number):
    while True:
        await asyncio.sleep(0.002 * number)
        count(compute(300) == short)
async def main():
    await asyncio.gather(*(work(number) for number in range(1, 20)))
short = compute(300)
asyncio.run(main())
""",
    "threads": """
import threading
def work():
    while True:
        count(compute() == expected)
for _ in range(31):
    threading.Thread(target=work, daemon=True).start()
work()
""",
    # A long C call without the GIL; the other thread is parked.
    "released": """
import hashlib, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
def digest(rounds):
    return hashlib.pbkdf2_hmac("sha256", b"key", b"salt", rounds)
expected = digest(20000)
while True:
    digest(1_000_000)
    count(digest(20000) == expected)
""",
    # Half a second in C with the GIL, again and again.
    "held": """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
begin = time.monotonic()
sum(range(3_000_000))
number = int(3_000_000 * 0.5 / (time.monotonic() - begin))
expected = sum(range(number))
while True:
    count(sum(range(number)) == expected)
""",
    "malloc": """
import ctypes, random, threading
c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
c.free.argtypes = [ctypes.c_void_p]
def churn(seed):
    sizes = random.Random(seed)
    while True:
        blocks = [c.malloc(sizes.randrange(2048, 67000)) for _ in range(20)]
        for block in blocks:
            c.free(block)
for seed in range(4):
    threading.Thread(target=churn, args=(seed,), daemon=True).start()
while True:
    count(compute() == expected)
""",
}


def interpreters() -> dict[str, list[str]]:
    """Version -> command. DFX_TEST_PYTHONS adds some: ``3.14=chroot /sid python3.14:3.15=...``."""
    found = {version: [python] for version, python in FOUND.items()}
    for extra in filter(None, os.environ.get("DFX_TEST_PYTHONS", "").split(":")):
        version, _, command = extra.partition("=")
        found[version] = shlex.split(command)
    return found


class RunningTarget:
    """A program that runs now."""

    def __init__(self, process: subprocess.Popen[bytes], page: int) -> None:
        self.process, self.pid, self._page = process, process.pid, page
        self._num_made = 0

    @property
    def payload(self) -> str:
        """A new text that marks its own byte behind the page: payloads may run at the same time."""
        self._num_made += 1
        return f"import os\nos.pwrite({self._page}, b'\\1', {_PAGE_BYTES + self._num_made - 1})\n"

    def _word(self, index: int) -> int:
        return int.from_bytes(os.pread(self._page, 8, 8 * index), "little")

    @property
    def num_rounds(self) -> int:
        return self._word(0)

    @property
    def num_wrong(self) -> int:
        return self._word(1)

    @property
    def num_payloads(self) -> int:
        return sum(os.pread(self._page, self._num_made, _PAGE_BYTES))

    def wait_for(self, num_payloads: int, seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while self.num_payloads < num_payloads and time.monotonic() < deadline:
            time.sleep(0.002)
        assert self.num_payloads == num_payloads

    def goes_on(self, seconds: float = 30.0) -> None:
        """It still works, and nothing that it computed was wrong."""
        before, deadline = self.num_rounds, time.monotonic() + seconds
        while self.num_rounds < before + 2:
            assert self.process.poll() is None, f"the target died: {self.process.returncode}"
            assert time.monotonic() < deadline, "the target stands still"
            time.sleep(0.01)
        assert self.num_wrong == 0


@contextlib.contextmanager
def running_target(command: list[str], program: str) -> Iterator[RunningTarget]:
    """``program`` is a name of PROGRAMS, or source."""
    with tempfile.TemporaryFile() as page:
        page.truncate(_PAGE_BYTES)
        code = _COMMON.replace("FD", str(page.fileno())) + PROGRAMS.get(program, program)
        process = subprocess.Popen([*command, "-c", code], pass_fds=[page.fileno()])
        target = RunningTarget(process, page.fileno())
        try:
            target.goes_on()
            yield target
        finally:
            process.kill()
            process.wait()

"""Small DDP jobs of 2 ranks, one after the other, and how each of them ended.

``python -m bench.ending_jobs NUM`` runs NUM rounds of jobs, without and with the guest in turn, and
prints how many of each kind stood for ever (docs/decisions/hang.md).
As jobs do: ``train`` lets go of its model after ``destroy_process_group``. In order: it does before
(``let_go``). Ranks are forks of a process that has only imported torch; the guest comes into the
rank, as with ``dfx_agent.shim.init``.
"""

from __future__ import annotations

import gc
import mmap
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import torch
import torch._dynamo  # an optimizer's first step does it; so it is done once, not in each rank
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench.estimates import share_interval

NUM_RANKS = 2
NUM_STEPS = 5
STALL_SECONDS = 8.0  # past its end, its main thread asleep and on no processor
LIMIT_SECONDS = 300.0
IN_ORDER_EVERY = 5  # rounds
STALLED = "stalled"


class Kind(NamedTuple):
    """Of a job."""

    has_guest: bool
    is_in_order: bool

    def __str__(self) -> str:
        ending = "in order" if self.is_in_order else "as jobs do"
        return f"{ending}, {'with' if self.has_guest else 'without'} the guest"


KINDS = tuple(Kind(guest, order) for order in (False, True) for guest in (False, True))


def train(rank: int, port: int, is_past: mmap.mmap, *, is_in_order: bool) -> None:
    """As jobs do, all that the process group was given is still held when it is destroyed."""
    store = dist.TCPStore("127.0.0.1", port, NUM_RANKS, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=NUM_RANKS)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(NUM_STEPS):
        model(torch.ones(8, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    gathered = [None] * NUM_RANKS
    dist.all_gather_object(gathered, rank)
    if is_in_order:
        del model, optimizer
        gc.collect()
    dist.destroy_process_group()
    is_past[rank] = 1  # and no system call: to let go of the GIL here is another race


def ending(kind: Kind) -> str:
    """Run one job. Returns in a rank too, with "": its interpreter ends then."""
    port, is_past = _unused_port(), mmap.mmap(-1, NUM_RANKS)
    pids = []
    for rank in range(NUM_RANKS):
        pid = os.fork()
        if not pid:
            if kind.has_guest:
                import dfx_agent.shim as dfx

                dfx.init(run="endings", rank=rank)
            train(rank, port, is_past, is_in_order=kind.is_in_order)
            return ""
        pids.append(pid)
    return _how_they_end(pids, is_past)


def _how_they_end(pids: list[int], is_past: mmap.mmap) -> str:
    deadline, how = time.monotonic() + LIMIT_SECONDS, "ended"
    left = {pid: _Stand() for pid in pids}
    while left and time.monotonic() < deadline:
        for rank, pid in enumerate(pids):
            found, status = os.waitpid(pid, os.WNOHANG) if pid in left else (0, 0)
            if found:
                del left[pid]
                how = _name(os.waitstatus_to_exitcode(status)) or how
            elif pid in left and is_past[rank]:
                left[pid].look(pid)
        if left and all(stand.seconds > STALL_SECONDS for stand in left.values()):
            how = STALLED
            break
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return how if how == STALLED or not left else "no end in time"


class _Stand:
    """How long a process' main thread has been asleep and was not once let run."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._ran, self._since = "", 0.0

    def look(self, pid: int) -> None:
        task, now = Path(f"/proc/{pid}/task/{pid}"), time.monotonic()
        is_asleep = (task / "stat").read_text().rpartition(")")[2].split()[0] == "S"
        ran = (task / "schedstat").read_text()
        if not is_asleep or ran != self._ran:
            self._ran, self._since = ran, now
        self.seconds = now - self._since


def _name(code: int) -> str:
    """ "" for an end without a fault."""
    if code < 0:
        return signal.Signals(-code).name
    return f"code_{code}" if code else ""


def _unused_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _report(counts: dict[Kind, Counter[str]]) -> None:
    for kind, endings in counts.items():
        tried = endings.total()
        if not tried:
            continue
        low, high = share_interval(endings[STALLED], tried)
        words = ", ".join(f"{number} {how}" for how, number in endings.most_common())
        print(f"{kind}: {words}; {STALLED} {low:.1%} to {high:.1%} of {tried}", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    counts: dict[Kind, Counter[str]] = {kind: Counter() for kind in KINDS}
    folder = os.environ["DFX_DIR"] = tempfile.mkdtemp(prefix="dfx-endings-")
    for number in range(int(sys.argv[1])):
        for kind in KINDS:
            if kind.is_in_order and number % IN_ORDER_EVERY:
                continue
            how = ending(kind)
            if not how:
                return
            counts[kind][how] += 1
        _report(counts)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()

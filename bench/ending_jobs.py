"""Small DDP jobs of 2 ranks, one after the other, and how each of them ended.

``python -m bench.ending_jobs NUM WITH_GUEST`` prints one word a job: ended, stalled, or the signal
or code that a rank ended by. Ranks are forks of a process that has only imported torch; the guest
comes into the rank, as with ``dfx_agent.shim.init``. Each ends as jobs do: ``main`` lets go of its
model after ``destroy_process_group``, then the interpreter ends.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import time

import torch
import torch._dynamo  # an optimizer's first step does it; so it is done once, not in each rank
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

NUM_RANKS = 2
NUM_STEPS = 5
STALL_SECONDS = 120.0
STALLED = "stalled"


def train(rank: int, port: int) -> None:
    """All that the process group was given is still held by ``model`` when it is destroyed."""
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
    dist.destroy_process_group()


def ending(*, has_guest: bool) -> str:
    """Run one job. Returns in a rank too, with "": its interpreter ends then."""
    port = _unused_port()
    pids = []
    for rank in range(NUM_RANKS):
        pid = os.fork()
        if not pid:
            _be_rank(rank, port, has_guest=has_guest)
            return ""
        pids.append(pid)
    return _how_they_end(pids)


def _be_rank(rank: int, port: int, *, has_guest: bool) -> None:
    faulthandler.dump_traceback_later(STALL_SECONDS - 20, exit=False)  # where it stalls
    if has_guest:
        import dfx_agent.shim as dfx

        dfx.init(run="endings", rank=rank)
    train(rank, port)


def _how_they_end(pids: list[int]) -> str:
    deadline, left, how = time.monotonic() + STALL_SECONDS, list(pids), "ended"
    while left and time.monotonic() < deadline:
        for pid in list(left):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                left.remove(pid)
                how = _name(os.waitstatus_to_exitcode(status)) or how
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return STALLED if left else how


def _name(code: int) -> str:
    """ "" for an end without a fault."""
    if code < 0:
        return signal.Signals(-code).name
    return f"code_{code}" if code else ""


def _unused_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def main() -> None:
    torch.set_num_threads(1)
    num_jobs, has_guest = int(sys.argv[1]), bool(int(sys.argv[2]))
    for _ in range(num_jobs):
        how = ending(has_guest=has_guest)
        if not how:
            return
        print(how, flush=True)


if __name__ == "__main__":
    main()

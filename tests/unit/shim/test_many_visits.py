"""Thirty visits of the guest end where they began: nothing of them adds up in the job."""

from __future__ import annotations

from typing import Any

import pytest
from attached_host import Host, until

NUM_VISITS = 30
# what the allocator keeps of the first visits settles in these: steps of 2.7 MiB, the last by 12
NUM_BEFORE = 12
# a segment is 1.1 MiB, and one that stayed at every second visit would be 16 MiB
MAX_GROWN_KIB = 6 * 1024

COUNTS = """
import atexit, gc, os
def forget_cycles():
    while gc.collect():
        pass
def counts():
    forget_cycles()
    return {
        "descriptors": sorted(os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
            if os.path.lexists(f"/proc/self/fd/{n}")),
        "exit callbacks": atexit._ncallbacks(),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "modules": sorted(sys.modules),
        "objects": len(gc.get_objects()),
        "segments": open("/proc/self/maps").read().count(".seg"),
    }
def resident_kib():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
class Leaves(torch.nn.Module):
    # the guest leaves in the middle of a stage of the training thread
    def forward(self, value):
        if leaves_inside:
            take_leave()
        return value
def take_leave():
    guest = os._dfx_residue["guest"].modules["dfx_agent.shim.attached"]
    thread = threading.Thread(target=guest.leave)
    thread.start()
    thread.join()
leaves_inside = False
model = torch.nn.Sequential(torch.nn.Linear(4, 4), Leaves())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
step(); step()
"""


def visit(trainer: Host, *, leaves_inside: bool) -> None:
    answer = trainer.attach()
    assert answer.state == "attached", answer
    trainer.do("step(); step(); step()")
    if leaves_inside:
        trainer.do("leaves_inside = True; step(); leaves_inside = False")
    else:
        trainer.do("take_leave()")
    trainer.do("step(); step()")
    until(lambda: trainer.has_left(answer), 60)
    until(lambda: trainer.do("[t.name for t in threading.enumerate()]") == ["MainThread"], 60)
    # the modules of a visit are cycles, about half a MiB until the job's collector has been there
    trainer.do("forget_cycles()")


@pytest.mark.slow
@pytest.mark.timeout(900)  # at load 24 it took more than 300 s
def test_thirty_visits_end_where_they_began(trainer: Host, agent: int) -> None:
    trainer.do(COUNTS)
    for number in range(NUM_BEFORE):
        visit(trainer, leaves_inside=number % 2 == 1)
    before: dict[str, Any] = trainer.do("counts()")
    kib_before = trainer.do("resident_kib()")
    for number in range(NUM_VISITS):
        visit(trainer, leaves_inside=number % 2 == 1)
    after, kib_after = trainer.do("counts()"), trainer.do("resident_kib()")
    assert before["segments"] == 0
    assert abs(after.pop("objects") - before.pop("objects")) < NUM_VISITS  # not one of each visit
    assert after == before
    assert kib_after - kib_before < MAX_GROWN_KIB

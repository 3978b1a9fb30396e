"""Model FLOPs of steps and stages, as the guest counts them."""

from __future__ import annotations

from dfx_agent.node.time.work import ClosedWork, Passes, Work, WorkAccount
from dfx_agent.wire.records import STAGE

SECOND = 10**9


def row(begin: float, end: float, parent: int = 0) -> tuple[int, int, int, int, int, str]:
    return int(begin * SECOND), 7, int(end * SECOND), parent, STAGE, "update"


def test_flops_are_stored_by_direction_type_and_stage():
    account = WorkAccount()
    account.add("flops/forward/bfloat16/update", 6.0, 1)
    account.add("flops/forward/bfloat16/update", 1.0, 1)
    account.add("flops/backward/bfloat16/update", 12.0, 1)
    account.add("flops/forward/float32/", 1.0, 1)
    account.add("micro_batches", 1.0, 1)
    inner, late, threads = row(2, 3, 4), row(9, 12), [row(1, 3), row(2, 4)]
    account.note_stages({"update": [*threads, inner, late]})
    assert account.pop(1, 0, 10 * SECOND) == ClosedWork(
        {
            Work("forward", "bfloat16", "update"): 7.0,
            Work("backward", "bfloat16", "update"): 12.0,
            Work("forward", "float32", ""): 1.0,
        },
        {"update": 3.0 + 1.0},
    )
    account.add("flops/forward/bfloat16/update", 1.0, 2)
    closed = account.pop(2, 10 * SECOND, 20 * SECOND)
    assert closed is not None
    assert closed.stage_seconds == {"update": 2.0}, "the part of the late one that lies in it"


def test_steps_without_flops_have_none_and_no_stages():
    account = WorkAccount()
    account.note_stages({"update": [row(0, 1)]})
    assert account.pop(1, 0, SECOND) is None
    account.add("flops/forward/float32/update", 1.0, 2)
    closed = account.pop(2, 0, 2 * SECOND)
    assert closed is not None
    assert closed.stage_seconds == {}


def test_a_job_that_names_stages_without_end_fills_nothing():
    account = WorkAccount()
    for number in range(1000):
        account.add(f"flops/forward/float32/stage-{number}", 1.0, 1)
        account.note_stages({f"stage-{number}": [row(0, 1)]})
        account.add("flops/forward/float32/x", 1.0, number + 2)
    account.pop(5000, 0, 1)
    assert len(account._flops[985 + 16]) == 1
    assert (len(account._flops), len(account._spans)) == (16, 64)


def test_inputs_of_passes_are_stored_by_stage_without_flops():
    account = WorkAccount()
    for name, amount in (("tokens", 100.0), ("pairs", 5000.0), ("tokens", 1.0), ("others", 7.0)):
        account.add(f"passes/{name}/actor_update", amount, 1)
    account.note_stages({"actor_update": [row(1, 3)]})
    closed = account.pop(1, 0, 10 * SECOND)
    assert closed == ClosedWork({}, {"actor_update": 2.0}, {"actor_update": Passes(101.0, 5000.0)})
    assert account.pop(2, 0, SECOND) is None


def test_a_job_that_names_passes_without_end_fills_nothing():
    account = WorkAccount()
    for number in range(1000):
        account.add(f"passes/tokens/stage-{number}", 1.0, 1)
        account.add("passes/tokens/x", 1.0, number + 2)
    account.pop(5000, 0, 1)
    assert len(account._passes) == 16

"""UniLab's collector is a spawned process: its target is pickled by name, at any time."""

from __future__ import annotations

import pytest
from shapes import Shapes

UNI_RL = Shapes(
    variable="DFX_TEST_UNI_RL",
    sources={
        "uni_rl/__init__.py": "",
        "uni_rl/offpolicy/__init__.py": "",
        # uni_rl/offpolicy/worker.py:151, 234 of unilab-rl 1.4.15
        "uni_rl/offpolicy/worker.py": """
            def _wait_for_inference_tick(coordination_queue, tick_id, stop_event):
                return True
            def _run_collector(**kwargs):
                return _wait_for_inference_tick(None, 1, None)
            def off_policy_collector_fn(*, done):
                done.put(_run_collector())
        """,
        # uni_rl/ipc/rollout_ring_buffer.py:110
        "uni_rl/ipc/rollout_ring_buffer.py": """
            class RolloutRingBuffer:
                def signal_write_done(self):
                    return "written"
        """,
    },
)
SPAWN = """
import multiprocessing
import dfx_agent.shim as dfx
{before}
from uni_rl.offpolicy.worker import off_policy_collector_fn
{after}
context = multiprocessing.get_context("spawn")
done = context.Queue()
child = context.Process(target=off_policy_collector_fn, kwargs={{"done": done}})
child.start()
assert done.get(timeout=60) is True
child.join()
dfx.init()
dfx.scalar("there", 1.0)
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        # the job took its target before the guest came, or keeps it after the guest has gone
        ("dfx.shutdown()", "dfx.init()"),
        ("dfx.init()", "dfx.shutdown()"),
    ],
)
def test_a_collector_can_always_be_spawned(before, after, tmp_path, dfx_dir):
    seen = UNI_RL.on_copy(SPAWN.format(before=before, after=after), tmp_path)
    assert seen.parts()["collector"] == 1.0


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("offpolicy.worker", "_run_collector()"),
        ("offpolicy.worker", "_wait_for_inference_tick(None, 1, None)"),
        ("ipc.rollout_ring_buffer", "RolloutRingBuffer().signal_write_done()"),
    ],
)
def test_who_collects_says_so_whenever_the_guest_came(module, call, tmp_path, dfx_dir):
    job = f"import uni_rl.{module} as module\nassert module.{call}\n"
    seen = UNI_RL.on_copy(job, tmp_path)
    assert seen.identity["role"] == "collector"

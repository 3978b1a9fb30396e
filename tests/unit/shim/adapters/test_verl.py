"""What verl's adapter must not leave in a job: batches that live on, errors of abandoned tasks."""

from __future__ import annotations

import pytest
from shapes import Shapes

# verl 0.9.1, verl/utils/profiler/performance.py and verl/single_controller/base
TIMER = """
from contextlib import contextmanager
{decorator}
def _timer(name, timing_raw):
    yield name
@contextmanager
def marked_timer(name, timing_raw):
    {delegate}
"""
VERL = Shapes(
    variable="DFX_TEST_VERL",
    sources={
        "verl/__init__.py": "__version__ = '0.9.1'\n",
        "verl/utils/__init__.py": "",
        "verl/utils/profiler/__init__.py": "",
        "verl/utils/profiler/performance.py": TIMER.format(
            decorator="", delegate="yield from _timer(name, timing_raw)"
        ),
    },
)


def test_the_first_batch_does_not_outlive_its_last_use(tmp_path, dfx_dir):
    job = """
import weakref
from verl.utils.profiler.performance import marked_timer
class Batch: pass
class Trainer:
    global_steps = 7
    def fit(self):
        batch = Batch()
        seen = weakref.ref(batch)
        with marked_timer("step", {}):
            with marked_timer("gen", {}):
                assert self.global_steps == 7 and seen() is batch
            del batch
            assert seen() is None
Trainer().fit()
"""
    seen = VERL.on_copy(job, tmp_path)
    assert seen.steps() == [7]
    assert seen.names("stage") == ["rollout"]


@pytest.mark.parametrize(("decorator", "state"), [("", 1.0), ("@contextmanager", 0.0)])
def test_a_timer_that_is_no_generator_is_left_alone(decorator, state, tmp_path, dfx_dir):
    delegate = "yield from _timer(name, timing_raw)"
    if decorator:
        delegate = "\n    with _timer(name, timing_raw) as it: yield it"
    source = TIMER.format(decorator=decorator, delegate=delegate)
    path = "verl/utils/profiler/performance.py"
    shapes = Shapes(VERL.variable, {**VERL.sources, path: source})
    job = """
from verl.utils.profiler.performance import marked_timer
with marked_timer("gen", {}) as it:
    assert it == "gen" or it is None
import dfx_agent.shim as dfx
dfx.scalar("there", 1.0)
"""
    assert shapes.on_copy(job, tmp_path).parts()["timers"] == state


def test_a_method_that_its_event_loop_left_open_is_closed_anywhere(tmp_path, dfx_dir):
    job = """
import asyncio, contextvars
import dfx_agent.shim as dfx
from dfx_agent.shim.adapters._verl_workers import _MethodSpan
async def method():
    with _MethodSpan(dfx.stage("rollout")):
        await asyncio.sleep(0)
left = method()
contextvars.copy_context().run(left.send, None)
left.close()
"""
    assert VERL.on_copy(job, tmp_path).names("stage") == ["rollout"]

"""Wrappers of adapters: what the job gave and got is what it would have been without them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "frameworks"))
from observed_job import observe

JOB = """
import asyncio
import dfx_agent.shim as dfx
import contextvars
from types import SimpleNamespace
from dfx_agent.shim import adapters
from dfx_agent.shim.adapters import _around
from dfx_agent.shim.patches import PatchSet

class Trainer:
    def report(self, values, step, *, flush=False):
        if adapters.trackers_are_quiet():
            values["heard"] = False
        return values, step, flush
    async def generate(self, prompt):
        raise KeyError(prompt)
    def update(self):
        raise RuntimeError("the job's own")
    @staticmethod
    def helper(x):
        return x

def read(writer, _trainer, values, step, **_):
    _around.report(writer, values, step, ends_step=True)
def broken(writer, *args, **kwargs):
    raise ValueError("ours")

before = dict(vars(Trainer))
module = SimpleNamespace(Trainer=Trainer)
patches = PatchSet("test.part")
def change(patches):
    _around.wrap(patches, module, "Trainer.report", _around.funnel(read))
    _around.wrap(patches, module, "Trainer.generate", _around.span("rollout", read=broken))
    _around.wrap(patches, module, "Trainer.update", _around.span(lambda *a: 1 / 0))
    _around.wrap(patches, module, "Trainer.helper", _around.before(broken))
    _around.wrap(patches, module, "Trainer.gone", _around.before(broken))
    _around.wrap(patches, module, "Gone.method", _around.before(broken))
patches.install(change)
assert patches.state == "active"

trainer, given = Trainer(), {"loss": 0.5}
values, step, flush = trainer.report(given, step=3, flush=True)
assert values is given and (step, flush) == (3, True) and given["heard"] is False
assert not adapters.trackers_are_quiet()
for call in (lambda: asyncio.run(trainer.generate("a")), trainer.update):
    try:
        call()
    except (KeyError, RuntimeError):
        pass
    else:
        raise SystemExit("the job's own exception is gone")
assert Trainer.helper(4) == trainer.helper(4) == 4

# an event loop that ends leaves coroutines behind, and whoever collects them closes them
class Monitor:
    async def log(self, values):
        await asyncio.sleep(0)
monitor = SimpleNamespace(Monitor=Monitor)
mute = PatchSet("test.mute")
mute.install(lambda mute: _around.wrap(mute, monitor, "Monitor.log", _around.quiet()))
left = Monitor().log({})
contextvars.copy_context().run(left.send, None)
left.close()
trainer.report({"loss": 0.25}, 2)  # a replay
dfx.set_step(10)  # the job counts itself: its steps and the framework's must not take turns
trainer.report({"loss": 0.125}, 10)
dfx.set_step(11)
patches.restore()
assert {name: vars(Trainer)[name] for name in before} == before
"""


def test_the_job_sees_no_difference(dfx_dir):
    seen = observe(JOB)
    assert seen.scalars() == {("loss", 3): [0.5], ("loss", 2): [0.25], ("loss", 10): [0.125]}
    assert seen.steps() == [4, 10, 11]
    assert seen.names("stage") == ["rollout"]
    assert seen.num_errors == 2  # our reader's and our name's, counted

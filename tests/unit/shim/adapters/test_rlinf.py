"""RLinf's timers in other versions: called as they were, and left alone where they cannot be."""

from __future__ import annotations

from contextlib import contextmanager
from types import ModuleType

import pytest

from dfx_agent.shim.adapters import rlinf
from dfx_agent.shim.patches import PatchSet


@pytest.fixture
def hook(monkeypatch):
    monkeypatch.setenv("DFX_DISABLE_HOOKS", "")
    patches = PatchSet("test.rlinf")
    yield patches
    patches.restore()


def test_arguments_that_we_do_not_know_are_handed_on(hook):
    class ScopedTimer:
        @contextmanager
        def __call__(self, name, *, synchronize=False):
            yield name, synchronize

    module = ModuleType("rlinf_of_tomorrow")
    module.ScopedTimer = ScopedTimer
    hook.install(lambda patches: rlinf._patch_runner_timer(patches, module))
    assert hook.state == "active"
    with ScopedTimer()("rollout", synchronize=True) as first, ScopedTimer()(name="eval") as second:
        assert (first, second) == (("rollout", True), ("eval", False))


def test_the_caller_is_the_tag_and_a_tag_that_is_given_stays(hook):
    class Worker:
        @contextmanager
        def worker_timer(self, tag=None, unit="s"):
            yield tag, unit

    def run_training(**given):
        with Worker().worker_timer(**given) as seen:
            return seen

    module = ModuleType("rlinf_of_today")
    module.Worker = Worker
    hook.install(lambda patches: rlinf._patch_worker(patches, module))
    assert hook.state == "active"
    assert run_training() == ("run_training", "s")
    assert run_training(tag=None, unit="ms") == ("run_training", "ms")
    assert run_training(tag="predict") == ("predict", "s")
    hook.switch.is_on = False
    assert run_training() == ("run_training", "s")


def test_a_timer_without_a_tag_is_left_alone(hook):
    class Worker:
        def worker_timer(self):
            return "untouched"

    module = ModuleType("rlinf_of_yesterday")
    module.Worker = Worker
    hook.install(lambda patches: rlinf._patch_worker(patches, module))
    assert hook.state == "absent"
    assert Worker().worker_timer() == "untouched"

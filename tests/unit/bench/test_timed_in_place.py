"""The guest's time in place: its wrappers less what they wrap, its hooks whole, nobody else's."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bench import timed_in_place
from bench.timed_in_place import GuestClock
from dfx_agent.shim.patches import PatchSet, registry

OPTIMIZERS = sys.modules[torch.optim.Optimizer.__module__]
TIMED = (
    (PatchSet, "replace"),
    (OPTIMIZERS, "register_optimizer_step_pre_hook"),
    (OPTIMIZERS, "register_optimizer_step_post_hook"),
    (nn.Module, "register_forward_pre_hook"),
    (nn.Module, "register_forward_hook"),
    (torch.Tensor, "register_post_accumulate_grad_hook"),
)


class Hands:
    """A clock that moves only when somebody works."""

    def __init__(self) -> None:
        self.now_ns = 0

    def work(self, nanoseconds: int) -> None:
        self.now_ns += nanoseconds


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    hands = Hands()
    monkeypatch.setattr(timed_in_place, "_clock", lambda: hands.now_ns)
    for owner, name in TIMED:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    return hands


@pytest.fixture
def clock(hands: Hands) -> GuestClock:
    clock = GuestClock()
    clock.start()
    return clock


def patched(owner: object, name: str, make: object) -> PatchSet:
    patches = PatchSet("bench")
    registry.pop("bench")
    patches.install(lambda patches: patches.replace(owner, name, make))
    return patches


def test_a_wrapper_counts_without_the_call_that_it_wraps(hands: Hands, clock: GuestClock) -> None:
    owner = SimpleNamespace(call=lambda: hands.work(1000))

    def make(original, _switch):
        def wrapper():
            hands.work(7)
            original()
            hands.work(5)

        return wrapper

    patches = patched(owner, "call", make)
    owner.call()
    assert clock.spent_ns == 12
    patches.restore()
    owner.call()
    assert clock.spent_ns == 12


def test_a_wrapper_inside_a_wrapped_call_counts_once(hands: Hands, clock: GuestClock) -> None:
    owner = SimpleNamespace(inner=lambda: hands.work(100))
    owner.outer = lambda: (hands.work(1000), owner.inner())

    def make(original, _switch):
        return lambda: (hands.work(3), original())

    installed = [patched(owner, name, make) for name in ("inner", "outer")]
    owner.outer()
    assert clock.spent_ns == 6
    for patches in installed:
        patches.restore()


def test_an_exception_of_the_job_passes_and_is_counted(hands: Hands, clock: GuestClock) -> None:
    def fail() -> None:
        hands.work(1000)
        raise KeyError("the job's own")

    owner = SimpleNamespace(call=fail)
    patches = patched(owner, "call", lambda original, _switch: lambda: (hands.work(2), original()))
    with pytest.raises(KeyError, match="own"):
        owner.call()
    assert clock.spent_ns == 2
    patches.restore()


def test_only_hooks_of_the_guest_are_timed(hands: Hands, clock: GuestClock) -> None:
    root = nn.Linear(1, 1)

    def ours(_module, _args) -> None:
        hands.work(4)

    def theirs(_module, _args) -> None:
        hands.work(1000)

    ours.__module__ = "dfx_agent.shim.torch.modules"
    root.register_forward_pre_hook(theirs)
    root.register_forward_pre_hook(ours)
    root(torch.zeros(1, 1))
    assert clock.spent_ns == 4

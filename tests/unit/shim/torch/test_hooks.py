"""Hooks that wait for the training thread: what becomes of them when the guest leaves and stays."""

from __future__ import annotations

import pytest

from dfx_agent.shim import patches
from dfx_agent.shim.patches import PatchSet
from dfx_agent.shim.torch import step_hooks
from dfx_agent.shim.torch.hooks import TorchHooks


@pytest.fixture
def optimizer(monkeypatch: pytest.MonkeyPatch) -> PatchSet:
    """A hook of a process that trains, in which nothing else of ours is."""
    monkeypatch.delenv("DFX_DISABLE_HOOKS", raising=False)
    monkeypatch.setattr(patches, "registry", {})
    monkeypatch.setattr(step_hooks, "BACKWARD", PatchSet("backward"))
    monkeypatch.setattr(step_hooks, "before_next_backward", [])
    monkeypatch.setattr(step_hooks.seen, "has_backward", True)
    optimizer = PatchSet("optimizer")
    for hook in (step_hooks.BACKWARD, optimizer):
        hook.install(lambda patches: patches.on_restore(lambda: None))
    return optimizer


def next_backward() -> None:
    while step_hooks.before_next_backward:
        step_hooks.before_next_backward.pop(0)()


def test_they_do_nothing_and_go_with_the_next_backward(optimizer) -> None:
    reported: list[str] = []
    TorchHooks().withdraw(lambda: reported.append("gone"))
    assert (optimizer.state, optimizer._undo != [], reported) == ("off", True, [])
    next_backward()
    assert (optimizer._undo, step_hooks.BACKWARD._undo, reported) == ([], [], ["gone"])


def test_they_continue_if_the_guest_stays(optimizer) -> None:
    hooks, reported = TorchHooks(), []
    hooks.withdraw(lambda: reported.append("gone"))
    hooks._cancel_removal()
    assert (optimizer.state, optimizer.is_active) == ("active", True)
    next_backward()
    assert (optimizer.is_active, reported) == (True, [])


def test_a_visit_that_failed_meanwhile_does_not_forget_what_they_were(optimizer) -> None:
    hooks, reported = TorchHooks(), []
    hooks.withdraw(lambda: reported.append("first"))
    hooks.withdraw(lambda: reported.append("second"))
    hooks._cancel_removal()
    assert optimizer.is_active
    hooks.withdraw(lambda: reported.append("third"))
    next_backward()
    assert reported == ["third"]
    assert hooks._removals == []

"""The loss of an optimizer's step: the sum of what went into its backward passes since the last.

Micro-batches are scaled before backward (a loss divided by their number, a sum divided by all its
tokens), so that their gradients add up; the sum of what was scaled is what the step minimises, and
what trainers log. A backward belongs to the optimizers whose gradients it has written; a gradient
that the job threw away takes its loss along, which is then told by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dfx_agent.shim import recorder
from dfx_agent.shim.torch import trained

# backward passes without any optimizer's step until each is told by itself: the job has none
_MAX_HELD = 64

Tell = Callable[[float], None]
_Marks = dict[int, tuple[tuple[int, int] | None, ...]]


class _Sum:
    """Of the losses since the last step. Those on a device arrive some steps later."""

    def __init__(self) -> None:
        self.total, self.num_losses, self._num_waiting = 0.0, 0, 0
        self.is_plain = True  # nothing of it was on a device
        self._is_whole, self._tell = True, None  # type: tuple[bool, Tell | None]
        self.is_shared = False

    def add(self, loss: Any) -> None:
        self.num_losses += 1
        if isinstance(loss, float):
            self.total += loss
            return
        self._num_waiting += 1
        self.is_plain = False
        try:
            value = getattr(loss, "_local_tensor", loss).detach().reshape(())
            recorder.current.fetch(value, self._arrive)  # type: ignore[union-attr]
        except Exception:  # noqa: BLE001 (a graph is being captured: the sum has no value)
            self._is_whole = False
            recorder.count_error()

    def close(self, tell: Tell) -> None:
        """``tell`` the sum, now or when the last of it has come from its device."""
        self._tell = tell
        self._tell_if_whole()

    def _arrive(self, host: Any) -> None:
        self._num_waiting -= 1
        self.total += float(host)
        self._tell_if_whole()

    def _tell_if_whole(self) -> None:
        if self._tell is not None and self._is_whole and not self._num_waiting:
            self._tell(self.total)


class _State:
    def __init__(self) -> None:
        self.unowned = _Sum()
        self.owned: dict[int, _Sum] = {}
        self.before: _Marks = {}  # of gradients, when backward began and when the last one ended
        self.after: _Marks = {}
        self.is_part = False  # hooks came in between the micro-batches of a step
        self.has_stepped = self.tells_each = False


state = _State()


def begin(*, is_late: bool) -> None:
    """Hooks come in; ``is_late``: a step may be half-way through."""
    state.unowned, state.is_part = _Sum(), is_late
    state.owned.clear()
    state.after.clear()


def before_backward() -> None:
    """What was thrown away since the last backward is told; gradients are looked at."""
    before: _Marks = {}
    for key, (_, each) in tuple(trained.state.optimizers.items()):
        before[key] = each.gradients()
    state.before = before
    for key in tuple(state.owned):
        if any(state.after.get(key, ())) and not any(before.get(key, ())):
            _tell_thrown_away(key)


def _tell_thrown_away(key: int) -> None:
    held = state.owned.pop(key)
    if held.num_losses and not held.is_shared:
        _close([held], _living(key))


def after_backward(loss: Any) -> None:
    """``loss``: what went into it, a float or a tensor on a device; None where it is not known."""
    after: _Marks = {}
    changed = []
    for key, (_, each) in tuple(trained.state.optimizers.items()):
        after[key] = each.gradients()
        if loss is not None and after[key] != state.before.get(key):
            changed.append(state.owned.get(key) or state.owned.setdefault(key, _Sum()))
    state.after = after
    if loss is None:
        return
    for held in changed or (state.unowned,):
        if type(loss) is float:
            held.total += loss
            held.num_losses += 1
        else:
            held.add(loss)
        held.is_shared |= len(changed) > 1
    if not state.has_stepped:
        _tell_each_where_nobody_steps(loss)


def _tell_each_where_nobody_steps(loss: Any) -> None:
    if state.unowned.num_losses > _MAX_HELD:
        state.tells_each, state.unowned, state.is_part = True, _Sum(), False
        state.unowned.add(loss)
    if state.tells_each:
        held, state.unowned = state.unowned, _Sum()
        _close([held], None)


def after_step(optimizer: Any, *, is_alone: bool) -> None:
    """Report the loss of this step of ``optimizer``, also of one that a scaler has skipped.

    ``is_alone``: ``trained.has_plain_names()``, which the caller has asked already.
    """
    state.has_stepped = True
    owned = state.owned.get(id(optimizer))
    state.after.pop(id(optimizer), None)
    is_part, state.is_part = state.is_part, False
    writer, unowned = recorder.current, state.unowned
    is_plain = owned is not None and owned.is_plain and not unowned.num_losses
    if is_plain and not is_part and writer is not None and is_alone:
        assert owned is not None
        writer.scalar("torch/loss", owned.total, None)
        owned.total, owned.num_losses, owned.is_shared = 0.0, 0, False  # goes on as a new one
        return
    state.owned.pop(id(optimizer), None)
    state.unowned = _Sum()
    held = [each for each in (unowned, owned) if each is not None and each.num_losses]
    if held and not is_part:
        _close(held, optimizer)


def _living(key: int) -> Any:
    return next((optimizer for optimizer, _ in trained.living() if id(optimizer) == key), None)


def _close(held: list[_Sum], optimizer: Any) -> None:
    writer, name = recorder.current, trained.name_of("loss", optimizer)
    if writer is None or name is None:
        return
    step, parts = writer.step_now(), []

    def arrive(total: float) -> None:
        parts.append(total)
        if len(parts) == len(held):
            writer.scalar(name, sum(parts), step)

    for each in held:
        each.close(arrive)

"""The loss of an optimizer's step: the sum of what went into its backward passes since the last.

Micro-batches are scaled before backward (a loss divided by their number, a sum divided by all its
tokens), so that their gradients add up; the sum of what was scaled is what the step minimises, and
what trainers log. A backward belongs to the optimizers whose gradients it has written; a gradient
that the job threw away takes its loss along, which is then told by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dfx_agent.shim import recorder, trained

# backward passes without any optimizer's step until each is told by itself: the job has none
_MAX_HELD = 64

Tell = Callable[[float], None]
_Marks = dict[int, tuple[tuple[int, int] | None, ...]]


class _Sum:
    """Of the losses since the last step. Those on a device arrive some steps later."""

    def __init__(self) -> None:
        self.total, self.num_losses, self._num_waiting = 0.0, 0, 0
        self._is_whole, self._tell = True, None  # type: tuple[bool, Tell | None]
        self.is_shared = False

    def add(self, loss: Any) -> None:
        self.num_losses += 1
        if isinstance(loss, float):
            self.total += loss
            return
        self._num_waiting += 1
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
    state.before = {id(o): each.gradients() for o, each in trained.living()}
    for key, held in list(state.owned.items()):
        then, now = state.after.get(key, ()), state.before.get(key, ())
        if any(then) and not any(now):
            del state.owned[key]
            if not held.is_shared:
                _close([held], _living(key))


def after_backward(loss: Any) -> None:
    """``loss``: what went into it, a float or a tensor on a device; None where it is not known."""
    state.after = {id(o): each.gradients() for o, each in trained.living()}
    if loss is None:
        return
    changed = [key for key, now in state.after.items() if now != state.before.get(key)]
    sums = [state.owned.setdefault(key, _Sum()) for key in changed] or [state.unowned]
    for each in sums:
        each.add(loss)
        each.is_shared |= len(sums) > 1
    if not state.has_stepped:
        if state.unowned.num_losses > _MAX_HELD:
            state.tells_each, state.unowned, state.is_part = True, _Sum(), False
            state.unowned.add(loss)
        if state.tells_each:
            held, state.unowned = state.unowned, _Sum()
            _close([held], None)


def after_step(optimizer: Any) -> None:
    """Tell the loss of this step of ``optimizer``, also of one that a scaler has skipped."""
    state.has_stepped = True
    sums = [state.unowned, state.owned.pop(id(optimizer), None)]
    state.unowned = _Sum()
    state.after.pop(id(optimizer), None)
    is_part, state.is_part = state.is_part, False
    held = [each for each in sums if each is not None and each.num_losses]
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

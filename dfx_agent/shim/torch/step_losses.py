"""The loss of an optimizer step: the sum of the losses of all its backward passes.

Micro-batches are scaled before backward (a loss divided by their number, a sum divided by all its
tokens), so that their gradients add up. The sum of the scaled losses is what the step minimises,
and what trainers log. A backward belongs to the optimizers whose gradients it has changed. If the
job discards a gradient, the loss of that backward is reported separately.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dfx_agent.shim import recorder
from dfx_agent.shim.torch import optimizers

# backward passes without a step of any optimizer, after which each loss is reported separately
_MAX_PENDING = 64

Report = Callable[[float], None]
_Marks = dict[int, tuple[tuple[int, int] | None, ...]]


class _Sum:
    """Sum of the losses since the last step. Losses on a device arrive some steps later."""

    def __init__(self) -> None:
        self.total, self.num_losses, self._num_waiting = 0.0, 0, 0
        self.is_plain = True  # whether no loss was on a device
        self._is_whole, self._report = True, None  # type: tuple[bool, Report | None]
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

    def close(self, report: Report) -> None:
        """Call ``report`` with the sum, now or when the last value has come from its device."""
        self._report = report
        self._report_if_complete()

    def _arrive(self, host: Any) -> None:
        self._num_waiting -= 1
        self.total += float(host)
        self._report_if_complete()

    def _report_if_complete(self) -> None:
        if self._report is not None and self._is_whole and not self._num_waiting:
            self._report(self.total)


class _LossState:
    def __init__(self) -> None:
        self.unowned = _Sum()
        self.owned: dict[int, _Sum] = {}
        self.before: _Marks = {}  # of gradients, at the begin of the last backward
        self.after: _Marks = {}  # of gradients, at its end
        self.is_part = False  # whether hooks were installed between the micro-batches of a step
        self.has_stepped = self.reports_each = False


state = _LossState()


def begin(*, is_late: bool) -> None:
    """Reset the sums when hooks are installed; ``is_late``: a step may be half done."""
    state.unowned, state.is_part = _Sum(), is_late
    state.owned.clear()
    state.after.clear()


def before_backward() -> None:
    """Report losses whose gradients were discarded since the last backward."""
    before: _Marks = {}
    for key, (_, tracked) in tuple(optimizers.state.optimizers.items()):
        before[key] = tracked.gradients()
    state.before = before
    for key in tuple(state.owned):
        if any(state.after.get(key, ())) and not any(before.get(key, ())):
            _report_discarded(key)


def _report_discarded(key: int) -> None:
    losses = state.owned.pop(key)
    if losses.num_losses and not losses.is_shared:
        _close([losses], _living(key))


def after_backward(loss: Any) -> None:
    """Add the loss of a backward: a float or a tensor on a device; None if it is unknown."""
    after: _Marks = {}
    changed = []
    for key, (_, tracked) in tuple(optimizers.state.optimizers.items()):
        after[key] = tracked.gradients()
        if loss is not None and after[key] != state.before.get(key):
            changed.append(state.owned.get(key) or state.owned.setdefault(key, _Sum()))
    state.after = after
    if loss is None:
        return
    for losses in changed or (state.unowned,):
        if type(loss) is float:
            losses.total += loss
            losses.num_losses += 1
        else:
            losses.add(loss)
        losses.is_shared |= len(changed) > 1
    if not state.has_stepped:
        _report_each_without_steps(loss)


def _report_each_without_steps(loss: Any) -> None:
    if state.unowned.num_losses > _MAX_PENDING:
        state.reports_each, state.unowned, state.is_part = True, _Sum(), False
        state.unowned.add(loss)
    if state.reports_each:
        losses, state.unowned = state.unowned, _Sum()
        _close([losses], None)


def after_step(optimizer: Any, *, is_alone: bool) -> None:
    """Report the loss of this step of ``optimizer``, even if a scaler has skipped the step.

    ``is_alone`` is ``optimizers.has_plain_names()``, which the caller has called already.
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
        owned.total, owned.num_losses, owned.is_shared = 0.0, 0, False  # reused as a new sum
        return
    state.owned.pop(id(optimizer), None)
    state.unowned = _Sum()
    sums = [losses for losses in (unowned, owned) if losses is not None and losses.num_losses]
    if sums and not is_part:
        _close(sums, optimizer)


def _living(key: int) -> Any:
    return next((optimizer for optimizer, _ in optimizers.living() if id(optimizer) == key), None)


def _close(sums: list[_Sum], optimizer: Any) -> None:
    writer, name = recorder.current, optimizers.name_of("loss", optimizer)
    if writer is None or name is None:
        return
    step, parts = writer.step_now(), []

    def arrive(total: float) -> None:
        parts.append(total)
        if len(parts) == len(sums):
            writer.scalar(name, sum(parts), step)

    for losses in sums:
        losses.close(arrive)

"""Finds the loss of a backward pass, without a GradScaler's factor and without waiting for it.

The factor is on the device. Instead of dividing by it, the guest stores the loss that was given to
the scaler together with the scaled loss, until backward is called or the scaled loss is deleted.
"""

from __future__ import annotations

import weakref
from typing import Any

from dfx_agent.shim import compiling, recorder
from dfx_agent.shim.patches import Switch


class _ScalerState:
    """What GradScalers of this process have done."""

    def __init__(self) -> None:
        # id(scaled loss) -> (scaled loss, loss)
        self.loss_by_scaled: dict[int, tuple[weakref.ref[Any], Any]] = {}
        self.has_scaler = False
        self.is_first = False  # since the install, perhaps between a scaler and its backward
        self.is_doubtful = False  # the argument of backward may not be the loss: call ``given_for``


state = _ScalerState()


def begin() -> None:
    """Reset the state when the hooks are installed."""
    state.is_first = state.is_doubtful = True


def given_for(tensor: Any) -> Any:
    """The loss for the argument of backward; None if a scaler's factor may be in it.

    That is a scaled loss that was changed since, or a product whose creation was not seen. For a
    DTensor it is the local part, or None if the local part is not complete.
    """
    is_first, state.is_first, state.is_doubtful = state.is_first, False, state.has_scaler
    scaled, loss = state.loss_by_scaled.get(id(tensor), (None, None))
    if scaled is not None and scaled() is tensor:
        return whole(loss)
    if state.has_scaler or (is_first and _is_product(tensor)):
        return None
    return whole(tensor)


def whole(value: Any) -> Any:
    """The local part of a DTensor; None if it is not complete, as a gather is a collective."""
    for placement in getattr(value, "placements", ()):
        if not placement.is_replicate():
            return None
    return getattr(value, "_local_tensor", value)


def scale_wrapper(original: Any, switch: Switch) -> Any:
    """Wrap ``GradScaler.scale``."""

    def scale(*args: Any, **kwargs: Any) -> Any:
        scaled = original(*args, **kwargs)
        if switch.is_on and not compiling.is_compiling():
            _note(args[1] if len(args) > 1 else kwargs.get("outputs"), scaled)
        return scaled

    return scale


def _note(outputs: Any, scaled: Any) -> None:
    try:
        if scaled is outputs:  # the scaler is off
            return
        state.has_scaler = state.is_doubtful = True
        is_one = not isinstance(scaled, (list, tuple))
        for loss, product in [(outputs, scaled)] if is_one else zip(outputs, scaled, strict=True):
            if getattr(product, "ndim", 1) == 0:
                _store(product, loss.detach())
    except Exception:  # noqa: BLE001 (never into the job)
        recorder.count_error()


def _store(product: Any, loss: Any) -> None:
    key, remove = id(product), state.loss_by_scaled.pop
    state.loss_by_scaled[key] = weakref.ref(product, lambda _ref: remove(key, None)), loss


def _is_product(tensor: Any) -> bool:
    return "Mul" in type(getattr(tensor, "grad_fn", None)).__name__

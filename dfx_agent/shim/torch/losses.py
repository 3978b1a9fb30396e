"""The loss that goes into backward, without the factor of a GradScaler and without waiting for it.

The factor lives on the device. Nothing is divided back: the loss that a scaler was given is kept
beside the scaled one, for as long as that one lives, and told when it comes to backward.
"""

from __future__ import annotations

import weakref
from typing import Any

from dfx_agent.shim import compiling, recorder
from dfx_agent.shim.patches import Switch


class _State:
    """What went through scalers."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[weakref.ref[Any], Any]] = {}  # id(scaled) -> (it, the loss)
        self.has_scaler = False
        self.is_first = False  # since hooks came in, perhaps between a scaler and its backward
        self.is_doubtful = False  # what goes into backward may not be the loss: ask ``given_for``


state = _State()


def begin() -> None:
    """Hooks come in."""
    state.is_first = state.is_doubtful = True


def given_for(tensor: Any) -> Any:
    """The loss for what goes into backward; None where a scaler's factor may be in it.

    That is a scaled loss that was changed since, or a product where nobody saw it being made. Of a
    DTensor its local part, None where that is not the whole.
    """
    is_first, state.is_first, state.is_doubtful = state.is_first, False, state.has_scaler
    scaled, loss = state.kept.get(id(tensor), (None, None))
    if scaled is not None and scaled() is tensor:
        return whole(loss)
    if state.has_scaler or (is_first and _is_product(tensor)):
        return None
    return whole(tensor)


def whole(value: Any) -> Any:
    """Of a DTensor its local part; None where that is not all, to collect it is a collective."""
    for placement in getattr(value, "placements", ()):
        if not placement.is_replicate():
            return None
    return getattr(value, "_local_tensor", value)


def scale_wrapper(original: Any, switch: Switch) -> Any:
    """Around ``GradScaler.scale``."""

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
                _keep(product, loss.detach())
    except Exception:  # noqa: BLE001 (never into the job)
        recorder.count_error()


def _keep(product: Any, loss: Any) -> None:
    key, forget = id(product), state.kept.pop
    state.kept[key] = weakref.ref(product, lambda _ref: forget(key, None)), loss


def _is_product(tensor: Any) -> bool:
    return "Mul" in type(getattr(tensor, "grad_fn", None)).__name__

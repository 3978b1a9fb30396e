"""Tracks the optimizers of this process: which one makes the steps, and which loss is whose.

The first optimizer that steps makes the steps and has the plain names ("torch/loss"). An optimizer
in a stage of the job (``actor_update``) takes precedence over one on the main thread, and that one
over all others. Every other optimizer has series of its own ("torch/optimizer_2/loss"): values of
two optimizers are never mixed.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from dfx_agent.shim import recorder, span_writer

# stages of RL trainers that distinguish the models of one process
_MODEL_OF_STAGE = {"actor_update": "actor", "critic_update": "critic"}
# steps of other optimizers after which the first one is replaced (it was a warm-up, say)
_MAX_OTHERS = 100
# more optimizers than this at a time have no names of their own
_MAX_NUMBER = 16


class TrackedOptimizer:
    """An optimizer that has stepped. ``number`` is 0 beyond the sixteenth."""

    def __init__(self, optimizer: Any, number: int) -> None:
        self.number = number
        groups = [group["params"] for group in optimizer.param_groups]
        parameters = [p for group in groups for p in group if p.requires_grad]
        ends = [parameters[0], parameters[-1]] if parameters else []
        self._probes = [weakref.ref(parameter) for parameter in ends]
        self.last_match: weakref.ref[Any] | None = None

    def gradients(self) -> tuple[tuple[int, int] | None, ...]:
        """A mark that changes when a backward or the job has written into the gradients."""
        marks: list[tuple[int, int] | None] = []
        for probe in self._probes:  # calls no function of the guest, for speed
            gradient = getattr(probe(), "grad", None)
            marks.append(None if gradient is None else (id(gradient), gradient._version))  # noqa: SLF001
        return tuple(marks)

    @property
    def has_matched(self) -> bool:
        return self.last_match is not None

    def has(self, gradient: Any, optimizer: Any) -> bool:
        """Whether this very tensor is the gradient of one of its parameters."""
        match = self.last_match() if self.last_match is not None else None
        if match is not None and match.grad is gradient:
            return True
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is gradient:
                    self.last_match = weakref.ref(parameter)
                    return True
        return False


class _OptimizerState:
    def __init__(self) -> None:
        self.optimizers: dict[int, tuple[weakref.ref[Any], TrackedOptimizer]] = {}
        self.first: weakref.ref[Any] | None = None
        self.claim_of_first = 0
        self.num_others = 0
        # the parameter of the last gradient norm, and its optimizer
        self.last_match: tuple[weakref.ref[Any], weakref.ref[Any]] | None = None
        self.writer: recorder.Recorder | None = None
        self.models: dict[int, str | None] = {}  # by id of a stage's name in ``writer``


state = _OptimizerState()


def find(optimizer: Any) -> TrackedOptimizer | None:
    """The tracked optimizer; None if it has not stepped yet."""
    entry = state.optimizers.get(id(optimizer))
    return entry[1] if entry is not None and entry[0]() is optimizer else None


def living() -> list[tuple[Any, TrackedOptimizer]]:
    """Return (optimizer, its tracking) for all optimizers that still exist."""
    rows = [(ref(), tracked) for ref, tracked in list(state.optimizers.values())]
    return [(optimizer, tracked) for optimizer, tracked in rows if optimizer is not None]


def track(optimizer: Any) -> TrackedOptimizer:
    """Track an optimizer, at its first step."""
    key, remove = id(optimizer), state.optimizers.pop
    used = {tracked.number for _, tracked in living()}
    number = next((n for n in range(1, _MAX_NUMBER + 1) if n not in used), 0)
    tracked = TrackedOptimizer(optimizer, number)
    state.optimizers[key] = weakref.ref(optimizer, lambda _ref: remove(key, None)), tracked
    return tracked


def is_first(optimizer: Any) -> tuple[bool, bool]:
    """At each step: (whether this optimizer makes the steps, whether it did not before)."""
    first = state.first() if state.first else None
    if first is optimizer:
        state.num_others = 0
        return True, False
    state.num_others += 1
    claim = _claim()
    if first is None or claim > state.claim_of_first or state.num_others > _MAX_OTHERS:
        state.first, state.claim_of_first = weakref.ref(optimizer), claim
        state.num_others = 0
        return True, True
    return False, False


def has_plain_names() -> bool:
    """Whether there is only one optimizer, and no stage that could name its model is open.

    Hooks call it before ``name_of``, which needs two functions more.
    """
    return len(state.optimizers) < 2 and span_writer.innermost.get() is None


def name_of(value: str, optimizer: Any) -> str | None:
    """Name of a series, such as "torch/loss", "torch/actor/loss" or "torch/optimizer_2/lr".

    A stage can name the model ("actor"). An ``optimizer`` of None, if the owner is unknown, stands
    for the first one. Returns None if the series has no name.
    """
    model = _model_at_work()
    if model is None:
        first = state.first() if state.first else None
        tracked = find(optimizer) if optimizer is not None and optimizer is not first else None
        if tracked is None:
            return f"torch/{value}"
        if not tracked.number:
            return None
        model = f"optimizer_{max(2, tracked.number)}"
    return f"torch/{model}/{value}"


def owner_of(gradient: Any) -> tuple[Any, bool]:
    """Return (the optimizer of a gradient, whether its norm may be reported).

    An optimizer that has not stepped yet is unknown. If the only known one has gradients of its own
    (such as a master copy of the weights), all norms count as its.
    """
    rows = living()
    for optimizer, tracked in rows:
        if tracked.has(gradient, optimizer):
            if tracked.last_match is not None:
                state.last_match = tracked.last_match, weakref.ref(optimizer)
            return optimizer, True
    return None, len(rows) < 2 and not any(tracked.has_matched for _, tracked in rows)


def _model_at_work() -> str | None:
    writer = recorder.current
    if writer is not state.writer:
        state.writer, state.models = writer, {}
    opened = span_writer.innermost.get()
    while opened is not None:
        if opened[0] is writer:
            name_id = opened[4]
            if name_id not in state.models:
                state.models[name_id] = _MODEL_OF_STAGE.get(opened[0].name_of(name_id))
            if state.models[name_id] is not None:
                return state.models[name_id]
        opened = opened[-1]
    return None


def _claim() -> int:
    model = _model_at_work()
    if model is not None:
        return 2 if model == "actor" else 0
    return int(threading.get_ident() == threading.main_thread().ident)

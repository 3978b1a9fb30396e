"""The optimizers of this process: which one makes the steps, and whose a loss or a norm is.

The first one that steps makes the steps and has the plain names ("torch/loss"); one that the job
names (stage ``actor_update``) goes before one on the main thread, that one before all others. Every
other optimizer has series of its own ("torch/optimizer_2/loss"): values of two are never mixed.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from dfx_agent.shim import recorder, span_writer

# stages of RL trainers that tell the models of one process apart
_MODEL_OF_STAGE = {"actor_update": "actor", "critic_update": "critic"}
# steps of other optimizers after which the first one has had its time (a warm-up, say)
_MAX_OTHERS = 100
# with more optimizers at a time than this nobody tells their values apart any more
_MAX_NUMBER = 16


class Optimizer:
    """One that has stepped, for as long as it lives. ``number`` is 0 beyond the sixteenth."""

    def __init__(self, optimizer: Any, number: int) -> None:
        self.number = number
        groups = [group["params"] for group in optimizer.param_groups]
        parameters = [p for group in groups for p in group if p.requires_grad]
        ends = [parameters[0], parameters[-1]] if parameters else []
        self._probes = [weakref.ref(parameter) for parameter in ends]
        self.newest: weakref.ref[Any] | None = None

    def gradients(self) -> tuple[tuple[int, int] | None, ...]:
        """Changes whenever a backward or the job has written into the gradients."""
        found: list[tuple[int, int] | None] = []
        for probe in self._probes:  # no function of ours inside: each runs cold
            gradient = getattr(probe(), "grad", None)
            found.append(None if gradient is None else (id(gradient), gradient._version))  # noqa: SLF001
        return tuple(found)

    @property
    def has_matched(self) -> bool:
        return self.newest is not None

    def has(self, gradient: Any, optimizer: Any) -> bool:
        """Whether this very tensor is the gradient of one of its parameters."""
        known = self.newest() if self.newest is not None else None
        if known is not None and known.grad is gradient:
            return True
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is gradient:
                    self.newest = weakref.ref(parameter)
                    return True
        return False


class _State:
    def __init__(self) -> None:
        self.optimizers: dict[int, tuple[weakref.ref[Any], Optimizer]] = {}
        self.first: weakref.ref[Any] | None = None
        self.claim_of_first = 0
        self.num_others = 0
        # the parameter whose gradient was asked for last, and its optimizer
        self.newest: tuple[weakref.ref[Any], weakref.ref[Any]] | None = None
        self.writer: recorder.Recorder | None = None
        self.models: dict[int, str | None] = {}  # by id of a stage's name in ``writer``


state = _State()


def known(optimizer: Any) -> Optimizer | None:
    """None when it has not stepped yet."""
    found = state.optimizers.get(id(optimizer))
    return found[1] if found is not None and found[0]() is optimizer else None


def living() -> list[tuple[Any, Optimizer]]:
    rows = [(ref(), each) for ref, each in list(state.optimizers.values())]
    return [(optimizer, each) for optimizer, each in rows if optimizer is not None]


def meet(optimizer: Any) -> Optimizer:
    """At its first step."""
    key, forget = id(optimizer), state.optimizers.pop
    taken = {each.number for _, each in living()}
    number = next((n for n in range(1, _MAX_NUMBER + 1) if n not in taken), 0)
    each = Optimizer(optimizer, number)
    state.optimizers[key] = weakref.ref(optimizer, lambda _ref: forget(key, None)), each
    return each


def is_first(optimizer: Any) -> tuple[bool, bool]:
    """At each step: (whether it makes the steps, whether only from now on)."""
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
    """Whether there is but one optimizer, and no stage that could name its model is open.

    Hooks ask it before ``name_of``, which runs two functions more.
    """
    return len(state.optimizers) < 2 and span_writer.innermost.get() is None


def name_of(value: str, optimizer: Any) -> str | None:
    """As in "torch/loss", "torch/actor/loss" where a stage names the model, "torch/optimizer_2/lr".

    ``optimizer`` is None where nobody knows whose it is: the first one's. None: nobody's.
    """
    model = _model_at_work()
    if model is None:
        first = state.first() if state.first else None
        each = known(optimizer) if optimizer is not None and optimizer is not first else None
        if each is None:
            return f"torch/{value}"
        if not each.number:
            return None
        model = f"optimizer_{max(2, each.number)}"
    return f"torch/{model}/{value}"


def owner_of(gradient: Any) -> tuple[Any, bool]:
    """(the optimizer whose gradient this is, whether it may be told).

    One that has not stepped yet is not known. Where the only one that is has gradients of its own
    (a master copy of the weights, say), all are taken for its.
    """
    rows = living()
    for optimizer, each in rows:
        if each.has(gradient, optimizer):
            if each.newest is not None:
                state.newest = each.newest, weakref.ref(optimizer)
            return optimizer, True
    return None, len(rows) < 2 and not any(each.has_matched for _, each in rows)


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

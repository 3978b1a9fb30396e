"""verl's Ray workers: spans around the methods that a ``RayWorkerGroup`` calls.

Ray pickles a worker class of the driver's own script by value, including its methods. A wrapped
method therefore needs only the standard library, and calls the original if there is no guest. The
step of a worker comes from its calls (weight sync, checkpoint, batch), else it is counted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from types import CellType, FunctionType, ModuleType
from typing import Any

import dfx_agent.shim as dfx
from dfx_agent.shim import recorder
from dfx_agent.shim.adapters import _around
from dfx_agent.shim.patches import PatchSet, Switch
from dfx_agent.shim.recorder import Recorder
from dfx_agent.shim.spans import Onloading, Span

_STAGE_OF_METHOD = {
    "generate_sequences": "rollout",
    "compute_rm_score": "reward",
    "compute_log_prob": "old_logprob",
    "compute_ref_log_prob": "ref_logprob",
    "compute_values": "values",
    "update_critic": "critic_update",
    "update_actor": "actor_update",
    "update_weights": "weight_sync",
    "sync_rollout_weights": "weight_sync",
    "execute_checkpoint_engine": "weight_sync",
    "save_checkpoint": "checkpoint",
    "load_checkpoint": "checkpoint",
    "to": "offload",
    "save_model_to_cpu": "offload",
    "restore_model_from_cpu": "offload",
}
# methods that a TrainingWorker has for any model
_STAGE_BY_ROLE = {
    ("infer_batch", "critic"): "values",
    ("infer_batch", "ref"): "ref_logprob",
    ("infer_batch", "actor"): "old_logprob",
    ("train_batch", "critic"): "critic_update",
    ("train_batch", "actor"): "actor_update",
    ("train_mini_batch", "critic"): "critic_update",
    ("train_mini_batch", "actor"): "actor_update",
}
_NO_STAGE = frozenset({"set_loss_fn", "reset", "start_profile", "stop_profile", "step_profile"})
_PLACE_IN_STEP = {
    "rollout": 0,
    "reward": 1,
    "old_logprob": 2,
    "ref_logprob": 3,
    "values": 4,
    "advantage": 5,
    "critic_update": 6,
    "actor_update": 7,
}
# stages in which a batch passes a language model; a critic has a different head
_PASSES = frozenset({"old_logprob", "ref_logprob", "actor_update"})
# how the parts of a colocated process are called
_ROLES = ("actor", "critic", "ref", "rollout", "reward")
_REGISTERED = "attrs_3141562937"  # verl's mark on a registered method

_inside_method: ContextVar[bool] = ContextVar("dfx_verl_method", default=False)


class _Worker:
    """What is known about the worker of this process."""

    patches: PatchSet | None = None
    came_late = False  # whether methods were registered before the guest was loaded
    roles: frozenset[str] = frozenset()
    next_step: int | None = None  # set when the weights of the previous step were synchronised
    has_step_numbers = False  # whether calls contain step numbers
    last_place = -1


_worker = _Worker()


def patch_methods(patches: PatchSet, module: ModuleType) -> None:
    _worker.patches = patches
    patches.replace(module, "register", _registering)
    base = getattr(sys.modules.get("verl.single_controller.base.worker"), "Worker", None)
    if base is not None:
        _worker.came_late = True
        for worker_class in _family(base):
            for method in list(vars(worker_class).values()):
                if hasattr(method, _REGISTERED):
                    _enter_registered(patches, method)


def _registering(original: Any, _switch: Switch) -> Any:
    def register(*args: Any, **kwargs: Any) -> Any:
        decorate = original(*args, **kwargs)
        return lambda function: decorate(_observed(function))

    return register


def _family(base: type[Any]) -> Iterator[type[Any]]:
    yield base
    for child in base.__subclasses__():
        yield from _family(child)


def _enter_registered(patches: PatchSet, method: Any) -> None:
    """Wrap the function inside a registered method, because Ray refers to the method object."""
    if not isinstance(method, FunctionType) or getattr(method, "dfx_observed", False):
        return
    cells = dict(zip(method.__code__.co_freevars, method.__closure__ or (), strict=True))
    cell = cells.get("func")
    if cell is not None:
        original = cell.cell_contents
        cell.cell_contents = _observed(original)
        patches.on_restore(lambda: _put_back(cell, original))


def _put_back(cell: CellType, original: Any) -> None:
    cell.cell_contents = original


def _observed(function: Any) -> Any:
    """Wrap a registered method. It may be pickled, so it uses only modules and its own cells."""
    import functools  # noqa: PLC0415 (loaded long ago)
    import inspect  # noqa: PLC0415 (10 ms; verl has loaded it)

    guest, name = __name__, getattr(function, "__name__", "")

    def find_adapter() -> Any:
        """Find this module in the process that runs the method; None without a guest."""
        attached = getattr(os, "_dfx_residue", {}).get("guest")
        return sys.modules.get(guest) if attached is None else attached.modules.get(guest)

    def run(*args: Any, **kwargs: Any) -> Any:
        adapter = find_adapter()
        if adapter is None:
            return function(*args, **kwargs)
        with adapter.span_of_method(name, args, kwargs):
            return function(*args, **kwargs)

    async def run_async(*args: Any, **kwargs: Any) -> Any:
        adapter = find_adapter()
        if adapter is None:
            return await function(*args, **kwargs)
        with adapter.span_of_method(name, args, kwargs):
            return await function(*args, **kwargs)

    wrapper = run_async if inspect.iscoroutinefunction(function) else run
    wrapper = functools.wraps(function)(wrapper)
    wrapper.dfx_observed = True  # type: ignore[attr-defined]
    return wrapper


class _MethodSpan:
    """A stage around the outermost registered method; methods called inside belong to it."""

    def __init__(self, stage: Span) -> None:
        self._stage = stage

    def __enter__(self) -> None:
        self._token = _inside_method.set(True)
        self._stage.__enter__()

    def __exit__(self, *failure: object) -> None:
        self._stage.__exit__(*failure)  # type: ignore[arg-type]
        with suppress(ValueError):  # a suspended coroutine may be closed in another context
            _inside_method.reset(self._token)


def span_of_method(
    method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> AbstractContextManager[Any]:
    """Span for one call of a registered method, in the worker's process; never raises."""
    writer = recorder.current or recorder.active()
    patches = _worker.patches
    if writer is None or patches is None or not patches.is_active or _inside_method.get():
        return nullcontext()
    try:
        stage = _enter_method(writer, method, args, kwargs)
    except Exception:  # noqa: BLE001 (never into the job)
        writer.count_error()
        return nullcontext()
    patches.switch.mark_used()
    if stage is None:
        return nullcontext()
    made = Onloading if _is_onload(method, args, kwargs) else dfx.stage
    return _MethodSpan(made(stage))


def _is_onload(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """``to(device)`` moves the model in both directions."""
    if method == "to":
        return "cpu" not in {str(value) for value in (*args[1:], *kwargs.values())}
    return method == "restore_model_from_cpu"


def _enter_method(
    writer: Recorder, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    """Name of the stage. Also records role, step, tokens and the shape of the batch."""
    if method.startswith("_") or method in _NO_STAGE:
        return None
    worker = args[0] if args else None
    role = _role_of(worker)
    _claim_role(writer, role)
    stage = _STAGE_OF_METHOD.get(method) or _STAGE_BY_ROLE.get((method, role), method)
    batch = next(filter(_is_batch, (*args[1:], *kwargs.values())), None)
    _update_step(writer, stage, _step_of_call(kwargs, batch))
    if batch is not None:
        dfx.ledger(stage, batch)
        if stage == "actor_update":
            for kind, count in _tokens_of(batch):
                writer.tokens(kind, count)
        if stage in _PASSES:
            _count_passes(writer, stage, args[0], batch)
    return stage


def _count_passes(writer: Recorder, stage: str, worker: Any, batch: Any) -> None:
    """Count this rank's share of the tokens, and of the attention pairs, in a model's passes.

    All ranks of the worker group share the job's samples, whatever the parallelism: verl counts its
    own MFU like that. Nothing is counted if verl does not provide the lengths of the samples.
    """
    lengths, num_ranks = _meta_value(batch, "global_token_num"), writer.identity.world_size
    if type(lengths) is not list or num_ranks <= 0:
        return
    epochs = _num_epochs(worker, batch) if stage == "actor_update" else 1
    writer.count(f"passes/tokens/{stage}", epochs * sum(lengths) / num_ranks)
    writer.count(f"passes/pairs/{stage}", epochs * sum(n * n for n in lengths) / num_ranks)


def _num_epochs(worker: Any, batch: Any) -> int:
    """How often an update iterates over the batch."""
    config = getattr(worker, "config", None)
    candidates = (
        _meta_value(batch, "epochs"),
        getattr(getattr(config, "actor", None), "ppo_epochs", None),
        getattr(config, "ppo_epochs", None),
    )
    return next((number for number in candidates if type(number) is int and number > 0), 1)


def _meta_value(batch: Any, name: str) -> Any:
    """A value in a DataProto's ``meta_info``, or in a NonTensorData of a TensorDict."""
    meta = getattr(batch, "meta_info", None)
    if isinstance(meta, dict):
        return meta.get(name)
    ask = getattr(batch, "get", None)
    return None if ask is None else getattr(ask(name, None), "data", None)


def _role_of(worker: Any) -> str:
    """Role of a worker object: its own word, else by what it trains, else by its class."""
    own_role = getattr(worker, "role", None)
    words = str(own_role).lower().split("_") if isinstance(own_role, str) else []
    if getattr(getattr(worker, "config", None), "model_type", None) == "value_model":
        words.append("critic")
    found = next((role for role in _ROLES if role in words), "")
    name = type(worker).__name__.lower()
    return found or next((role for role in _ROLES if name.startswith(role)), "trainer")


def _claim_role(writer: Recorder, role: str) -> None:
    """Set the role; of several workers in one process the first in ``_ROLES`` counts.

    RANK and WORLD_SIZE are set with the actor. LOCAL_RANK is 0 if Ray hides the other devices.
    """
    if role not in _worker.roles:
        _worker.roles |= {role}
        chosen = next((name for name in _ROLES if name in _worker.roles), role)
        per_node = os.environ.get("RAY_LOCAL_WORLD_SIZE", "")
        numbers = {}
        if per_node.isdecimal() and int(per_node) and writer.identity.rank >= 0:
            numbers["local_rank"] = writer.identity.rank % int(per_node)
        _around.claim(writer, chosen, **numbers)


def _step_of_call(kwargs: dict[str, Any], batch: Any) -> int | None:
    meta = getattr(batch, "meta_info", None)
    numbers = [kwargs.get("global_steps"), kwargs.get("global_step")]
    if isinstance(meta, dict):
        numbers.append(meta.get("global_steps"))
    return next(
        (number for number in map(_around.step_number, numbers) if number is not None), None
    )


def _update_step(writer: Recorder, stage: str, step: int | None) -> None:
    """A weight sync with number n ends step n; a repeated stage begins the next step."""
    if step is not None:
        _worker.has_step_numbers = True
        if stage == "weight_sync":
            _worker.next_step = step + 1
            writer.policy_version(step)
        else:
            _around.begin_step(writer, step)
    place = _PLACE_IN_STEP.get(stage)
    if place is None:
        return
    if _worker.next_step is not None:
        _around.begin_step(writer, _worker.next_step)
        _worker.next_step = None
    elif not _worker.has_step_numbers and not _worker.came_late:
        is_again = place <= _worker.last_place and stage != "rollout"
        if writer.step is None or is_again or place < _worker.last_place:
            _around.begin_step(writer, (writer.step or 0) + 1)
    _worker.last_place = place


def _is_batch(value: Any) -> bool:
    """Whether the value is a DataProto or TensorDict."""
    return hasattr(value, "batch_size") or hasattr(value, "non_tensor_batch")


def _tokens_of(batch: Any) -> Iterator[tuple[str, int]]:
    """Prompt and response tokens of this rank's share; nothing if they are on a device.

    Padded (V0): attention_mask (B, P+R) and responses (B, R). Jagged (V1): prompts and responses,
    one row per sample, whose values are the tokens.
    """
    tensors = getattr(batch, "batch", batch)
    names = set() if tensors is None else set(tensors.keys())
    if "responses" not in names:
        return
    responses = tensors["responses"]
    if responses.is_nested:
        yield "response", int(responses.values().shape[0])
        if "prompts" in names:
            yield "prompt", int(tensors["prompts"].values().shape[0])
    elif "attention_mask" in names and tensors["attention_mask"].device.type == "cpu":
        mask, width = tensors["attention_mask"], responses.shape[-1]
        yield "response", int(mask[..., -width:].sum())
        yield "prompt", int(mask[..., :-width].sum())

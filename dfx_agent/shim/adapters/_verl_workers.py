"""verl's Ray workers: what is put around the methods that a ``RayWorkerGroup`` calls.

Ray ships a worker class of the driver's own script by value, its methods with it. What is put
around them therefore needs the standard library only: where there is no guest, it calls the method.
The step of a worker is the number it is told (weight sync, checkpoint, batch), else it is counted.
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
# a TrainingWorker has these whatever it trains
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
# where a batch goes through a language model; a critic's head is another one
_PASSES = frozenset({"old_logprob", "ref_logprob", "actor_update"})
# what a colocated process is called when it is several
_ROLES = ("actor", "critic", "ref", "rollout", "reward")
_REGISTERED = "attrs_3141562937"  # verl's mark on a registered method

_inside_method: ContextVar[bool] = ContextVar("dfx_verl_method", default=False)


class _Methods:
    """What is known about the worker of this process."""

    patches: PatchSet | None = None
    came_late = False
    roles: frozenset[str] = frozenset()
    next_step: int | None = None  # the weights of the step before are synchronised
    is_told = False
    last_place = -1


_methods = _Methods()


def patch_methods(patches: PatchSet, module: ModuleType) -> None:
    _methods.patches = patches
    patches.replace(module, "register", _registering)
    base = getattr(sys.modules.get("verl.single_controller.base.worker"), "Worker", None)
    if base is not None:
        _methods.came_late = True
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
    """Ray holds the method itself, not its name: what it calls is changed inside it."""
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
        """This module in the process that runs the method, None without a guest."""
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
    """A stage around the outermost registered method; those it calls itself belong to it."""

    def __init__(self, stage: Span) -> None:
        self._stage = stage

    def __enter__(self) -> None:
        self._token = _inside_method.set(True)
        self._stage.__enter__()

    def __exit__(self, *failure: object) -> None:
        self._stage.__exit__(*failure)  # type: ignore[arg-type]
        with suppress(ValueError):  # a coroutine that its event loop left open is closed elsewhere
            _inside_method.reset(self._token)


def span_of_method(
    method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> AbstractContextManager[Any]:
    """Stage of one call of a registered method, here in the worker; never raises."""
    writer = recorder.current or recorder.active()
    patches = _methods.patches
    if writer is None or patches is None or not patches.is_active or _inside_method.get():
        return nullcontext()
    try:
        stage = _enter_method(writer, method, args, kwargs)
    except Exception:  # noqa: BLE001 (never into the job)
        writer.count_error()
        return nullcontext()
    patches.switch.see()
    if stage is None:
        return nullcontext()
    made = Onloading if _is_onload(method, args, kwargs) else dfx.stage
    return _MethodSpan(made(stage))


def _is_onload(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """``to(device)`` goes both ways."""
    if method == "to":
        return "cpu" not in {str(value) for value in (*args[1:], *kwargs.values())}
    return method == "restore_model_from_cpu"


def _enter_method(
    writer: Recorder, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    """Name of the stage; on the way: role, step, tokens and the shape of the batch."""
    if method.startswith("_") or method in _NO_STAGE:
        return None
    worker = args[0] if args else None
    role = _role_of(worker)
    _claim_role(writer, role)
    stage = _STAGE_OF_METHOD.get(method) or _STAGE_BY_ROLE.get((method, role), method)
    batch = next(filter(_is_batch, (*args[1:], *kwargs.values())), None)
    _follow_steps(writer, stage, _told_step(kwargs, batch))
    if batch is not None:
        dfx.ledger(stage, batch)
        if stage == "actor_update":
            for kind, count in _tokens_of(batch):
                writer.tokens(kind, count)
        if stage in _PASSES:
            _tell_passes(writer, stage, args[0], batch)
    return stage


def _tell_passes(writer: Recorder, stage: str, worker: Any, batch: Any) -> None:
    """What this rank's share of a model's passes took in: tokens, and pairs that attend.

    All ranks of the worker group share the job's samples, however it is parallel: verl counts its
    own MFU like that. Nothing where it does not say how long the samples are.
    """
    lengths, num_ranks = _told(batch, "global_token_num"), writer.identity.world_size
    if type(lengths) is not list or num_ranks <= 0:
        return
    epochs = _num_epochs(worker, batch) if stage == "actor_update" else 1
    writer.count(f"passes/tokens/{stage}", epochs * sum(lengths) / num_ranks)
    writer.count(f"passes/pairs/{stage}", epochs * sum(n * n for n in lengths) / num_ranks)


def _num_epochs(worker: Any, batch: Any) -> int:
    """How often an update goes through the batch."""
    config = getattr(worker, "config", None)
    known = (
        _told(batch, "epochs"),
        getattr(getattr(config, "actor", None), "ppo_epochs", None),
        getattr(config, "ppo_epochs", None),
    )
    return next((number for number in known if type(number) is int and number > 0), 1)


def _told(batch: Any, name: str) -> Any:
    """Beside the batch: in a DataProto's ``meta_info``, in a TensorDict as a NonTensorData."""
    meta = getattr(batch, "meta_info", None)
    if isinstance(meta, dict):
        return meta.get(name)
    ask = getattr(batch, "get", None)
    return None if ask is None else getattr(ask(name, None), "data", None)


def _role_of(worker: Any) -> str:
    """Of one worker object: what it says itself, else by what it trains, else by its class."""
    said = getattr(worker, "role", None)
    words = str(said).lower().split("_") if isinstance(said, str) else []
    if getattr(getattr(worker, "config", None), "model_type", None) == "value_model":
        words.append("critic")
    found = next((role for role in _ROLES if role in words), "")
    name = type(worker).__name__.lower()
    return found or next((role for role in _ROLES if name.startswith(role)), "trainer")


def _claim_role(writer: Recorder, role: str) -> None:
    """A process that holds several workers goes by the first of ``_ROLES`` among them.

    RANK and WORLD_SIZE came with the actor. LOCAL_RANK is 0 wherever Ray hides the other devices.
    """
    if role not in _methods.roles:
        _methods.roles |= {role}
        chosen = next((known for known in _ROLES if known in _methods.roles), role)
        per_node = os.environ.get("RAY_LOCAL_WORLD_SIZE", "")
        numbers = {}
        if per_node.isdecimal() and int(per_node) and writer.identity.rank >= 0:
            numbers["local_rank"] = writer.identity.rank % int(per_node)
        _around.claim(writer, chosen, **numbers)


def _told_step(kwargs: dict[str, Any], batch: Any) -> int | None:
    meta = getattr(batch, "meta_info", None)
    numbers = [kwargs.get("global_steps"), kwargs.get("global_step")]
    if isinstance(meta, dict):
        numbers.append(meta.get("global_steps"))
    return next(
        (number for number in map(_around.step_number, numbers) if number is not None), None
    )


def _follow_steps(writer: Recorder, stage: str, told: int | None) -> None:
    """A weight sync with number n ends step n; a stage that was passed already begins the next."""
    if told is not None:
        _methods.is_told = True
        if stage == "weight_sync":
            _methods.next_step = told + 1
            writer.policy_version(told)
        else:
            _around.begin_step(writer, told)
    place = _PLACE_IN_STEP.get(stage)
    if place is None:
        return
    if _methods.next_step is not None:
        _around.begin_step(writer, _methods.next_step)
        _methods.next_step = None
    elif not _methods.is_told and not _methods.came_late:
        is_again = place <= _methods.last_place and stage != "rollout"
        if writer.step is None or is_again or place < _methods.last_place:
            _around.begin_step(writer, (writer.step or 0) + 1)
    _methods.last_place = place


def _is_batch(value: Any) -> bool:
    """DataProto or TensorDict."""
    return hasattr(value, "batch_size") or hasattr(value, "non_tensor_batch")


def _tokens_of(batch: Any) -> Iterator[tuple[str, int]]:
    """Prompt and response tokens of this rank's share; nothing where a device would be waited for.

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

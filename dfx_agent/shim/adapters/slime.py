"""slime: rollouts in one Ray actor, Megatron training in one Ray actor per rank.

Source: THUDM/slime 624b824; up to 0.3.1 the same functions are in ``slime.utils``. Every report
passes one function, with its step in the dict under ``step_key``. There are three axes (rollout,
train, eval); "rollout/step" is the step here. The function is also called without a tracker.

The shape ledger inspects a rollout's samples (at most 2**17 tokens per column are summed) and the
input of a training rank: a sum per sample and column on the device. Log-probabilities are ignored
there: with context parallelism a rank has a part of them but the complete mask.
"""

from __future__ import annotations

from contextlib import suppress
from types import ModuleType
from typing import Any

from dfx_agent.shim.adapters import Parts, _around
from dfx_agent.shim.adapters._around import Offload, Onload, StageOnce, span, wrap
from dfx_agent.shim.ledger import observe
from dfx_agent.shim.patches import PatchSet
from dfx_agent.shim.recorder import Recorder
from dfx_agent.shim.spans import wait

# names of the timers in the training actors
_STAGES = {
    "log_probs": "old_logprob",
    "ref_log_probs": "ref_logprob",
    "teacher_log_probs": "ref_logprob",
    "actor_train": "actor_update",
    "critic_train": "critic_update",
    "update_weights": "weight_sync",
    "save_model": "checkpoint",
    "sleep": "offload",
    "wake_up": "offload",
}
_MOVES = {"sleep": Offload, "wake_up": Onload}
# columns of a Sample, and of the rollout data of a training rank
_SAMPLED = ("index", "group_index", "tokens", "response_length", "loss_mask", "rollout_log_probs",
            "reward")  # fmt: skip
_TRAINED = {
    "index": "sample_indices",
    "tokens": "tokens",
    "response_length": "response_lengths",
    "loss_mask": "loss_masks",
    "rewards": "rewards",
}


def _patch_logging(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "log", _around.funnel(_read_log))


def _read_log(
    writer: Recorder,
    args: Any,  # noqa: ARG001 (may be given by name)
    metrics: Any,
    step_key: str,
) -> None:
    is_rollout = step_key == "rollout/step"
    _around.report(writer, metrics, metrics.get(step_key), ends_step=is_rollout)


def _patch_timers(patches: PatchSet, module: ModuleType) -> None:
    """There is one ``Timer`` per process; "train_wait" is open between two calls of the actor."""
    running: dict[str, Any] = {}

    def begin(_writer: Recorder, _: None, _timer: Any, name: str) -> None:
        made = _MOVES.get(name, StageOnce)
        span = wait("queue") if name == "train_wait" else made(_STAGES.get(name, name))
        running[name] = span.__enter__()

    def end(_writer: Recorder, _: None, _timer: Any, name: str) -> None:
        span = running.pop(name, None)
        if span is not None:
            span.__exit__(None, None, None)

    wrap(patches, module, "Timer.start", _around.after(begin))
    wrap(patches, module, "Timer.end", _around.after(end))


def _patch_training(patches: PatchSet, module: ModuleType) -> None:
    """Patch the class, which is decorated where it is used and not here."""
    wrap(patches, module, "MegatronTrainRayActor.train", _around.before(_read_train))
    for stage, method in {"actor_update": "train_actor", "critic_update": "train_critic"}.items():
        wrap(patches, module, f"MegatronTrainRayActor.{method}", _around.before(_shared(stage)))


def _read_train(writer: Recorder, actor: Any, rollout_id: Any, *_: Any, **__: Any) -> None:
    _around.claim(writer, actor.role)
    _around.begin_step(writer, rollout_id)


def _shared(stage: str) -> _around.Read:
    def read(
        writer: Recorder, _actor: Any, _rollout_id: Any, rollout_data: Any, *_: Any, **__: Any
    ) -> None:
        columns = {name: rollout_data[key] for name, key in _TRAINED.items() if key in rollout_data}
        observe(writer, stage, columns)

    return read


def _patch_rollout(patches: PatchSet, module: ModuleType) -> None:
    make = span(_stage_of_rollout, read=_claim_rollout)
    wrap(patches, module, "call_rollout_fn", make)


def _stage_of_rollout(*_: Any, evaluation: bool = False, **__: Any) -> str:
    return "validation" if evaluation else "rollout"


def _claim_rollout(
    writer: Recorder, _fn: Any, _args: Any, rollout_id: Any, *_: Any, **__: Any
) -> None:
    _around.claim(writer, "rollout")
    _around.begin_step(writer, rollout_id)


def _patch_samples(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "log_rollout_data", _around.before(_read_columns))
    wrap(patches, module, "log_rollout_data", _around.before(_read_samples))


def _read_columns(
    writer: Recorder, _rollout_id: Any, _args: Any, samples: Any, *_: Any, **__: Any
) -> None:
    """Inspect columns that every sample has: slime fills others later, and rewards may be dicts."""
    columns = {name: [getattr(sample, name, None) for sample in samples] for name in _SAMPLED}
    whole = {n: v for n, v in columns.items() if not any(x is None or _is_dict(x) for x in v)}
    observe(writer, "rollout", whole)


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def _read_samples(
    writer: Recorder, rollout_id: Any, _args: Any, samples: Any, *_: Any, **__: Any
) -> None:
    """Report samples whose weights changed: each engine call stores its version in the sample."""
    versions = [found for sample in samples if (found := getattr(sample, "weight_versions", None))]
    if not versions:
        return
    num_partial = sum(len(set(of_sample)) > 1 for of_sample in versions)
    values: dict[str, float] = {
        "pipeline/partial/ratio": num_partial / len(versions),
        "pipeline/partial/samples": num_partial,
    }
    with suppress(ValueError):  # an engine without a version number calls it "default"
        numbers = [[int(version) for version in of_sample] for of_sample in versions]
        values["pipeline/partial/max_span"] = max(max(n) - min(n) for n in numbers)
    _around.report(writer, values, rollout_id)


PARTS: Parts = {
    "logging": ("slime.observability.logging_utils", _patch_logging),
    "logging_v03": ("slime.utils.logging_utils", _patch_logging),
    "timers": ("slime.observability.timer", _patch_timers),
    "timers_v03": ("slime.utils.timer", _patch_timers),
    "samples": ("slime.observability.rollout_metrics", _patch_samples),
    "training": ("slime.backends.megatron_utils.actor", _patch_training),
    "rollout": ("slime.rollout.base_types", _patch_rollout),
}

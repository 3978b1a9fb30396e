"""miles, a fork of slime: the same functions under other module names.

Source: radixark/miles 31f1ca9. Only the call of a rollout differs: its arguments are one object.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from dfx_agent.shim.adapters import Parts, _around, slime
from dfx_agent.shim.patches import PatchSet
from dfx_agent.shim.recorder import Recorder


def _patch_rollout(patches: PatchSet, module: ModuleType) -> None:
    make = _around.span(_stage, read=_claim)
    _around.wrap(patches, module, "call_rollout_function", make)


def _stage(_fn: Any, input: Any) -> str:  # noqa: A002 (may be given by name)
    return "validation" if input.evaluation else "rollout"


def _claim(writer: Recorder, _fn: Any, input: Any) -> None:  # noqa: A002
    _around.claim(writer, "rollout")
    _around.begin_step(writer, input.rollout_id)


PARTS: Parts = {
    "logging": ("miles.utils.tracking_utils.tracking", slime.PARTS["logging"][1]),
    "timers": ("miles.utils.timer", slime.PARTS["timers"][1]),
    "samples": ("miles.ray.rollout.metrics", slime.PARTS["samples"][1]),
    "training": ("miles.backends.megatron_utils.actor", slime.PARTS["training"][1]),
    "rollout": ("miles.rollout.inference_rollout.compatibility", _patch_rollout),
    "rollout_legacy": ("miles.rollout.base_types", slime.PARTS["rollout"][1]),
}

"""Hugging Face's ``transformers.Trainer`` without TRL: metrics, step, evaluation, checkpoint.

Source: transformers 5.23. TRL's adapter patches the same functions. These wrappers do nothing once
TRL is imported. The stages of an update come from the hooks on torch.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from dfx_agent.shim.adapters import Parts, Patch, _around
from dfx_agent.shim.patches import PatchSet, Switch
from dfx_agent.shim.recorder import Recorder

KIND = "trainer"


def read_log(writer: Recorder, trainer: Any, logs: Any, *_: Any, **__: Any) -> None:
    """Report before the callbacks, which add values for trackers only. The epoch is added here.

    In evaluation the keys start with "eval_" and retain it.
    """
    _around.report(writer, logs, trainer.state.global_step)
    if trainer.state.epoch is not None:
        writer.scalar("epoch", trainer.state.epoch, trainer.state.global_step)


def begin_step(writer: Recorder, trainer: Any, *_: Any, **__: Any) -> None:
    """Start the step of this micro-batch, if it is not the current step."""
    if writer.identity.role == "driver":  # one process without a launcher
        _around.claim(writer, "trainer")
    step = trainer.state.global_step + 1
    if writer.step == step:
        writer.has_explicit_steps = True
    elif not writer.has_own_steps:
        writer.set_step(step)


def _without_trl(make: _around.Make) -> _around.Make:
    """Call the original while TRL is imported: its own adapter reads the same function."""

    def make_both(original: Any, switch: Switch) -> Any:
        observed = make(original, switch)

        def run(*args: Any, **kwargs: Any) -> Any:
            return (original if "trl" in sys.modules else observed)(*args, **kwargs)

        return run

    return make_both


def _patch(method: str, make: _around.Make) -> Patch:
    def patch(patches: PatchSet, module: ModuleType) -> None:
        _around.wrap(patches, module, f"Trainer.{method}", _without_trl(make))

    return patch


_TRAINER = "transformers.trainer"
PARTS: Parts = {
    "log": (_TRAINER, _patch("log", _around.funnel(read_log))),
    "steps": (_TRAINER, _patch("training_step", _around.before(begin_step))),
    "evaluation": (_TRAINER, _patch("evaluate", _around.span("validation"))),
    "checkpoint": (_TRAINER, _patch("_save_checkpoint", _around.span("checkpoint"))),
}

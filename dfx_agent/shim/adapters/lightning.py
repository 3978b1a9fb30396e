"""Lightning 2.x, under both of its package names: ``training_step``, metrics, checkpoint.

Source: lightning 2.6.6. Lightning runs ``training_step`` in a closure inside ``optimizer.step``.
Without this stage its time would count as optimizer. Steps come from the hooks on torch.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

from dfx_agent.shim.adapters import Parts, Patch, _around
from dfx_agent.shim.patches import PatchSet
from dfx_agent.shim.recorder import Recorder


def parts(package: str) -> Parts:
    """Parts of the adapter of ``lightning.pytorch`` or ``pytorch_lightning``."""
    connector = "trainer.connectors.logger_connector.logger_connector"
    return {
        "training_step": (
            f"{package}.strategies.strategy",
            _patch("Strategy.training_step", _around.span("forward")),
        ),
        "log": (
            f"{package}.{connector}",
            _patch("_LoggerConnector.log_metrics", _around.funnel(_read_metrics)),
        ),
        "evaluation": (
            f"{package}.loops.evaluation_loop",
            _patch("_EvaluationLoop.run", _around.span("validation")),
        ),
        "checkpoint": (
            f"{package}.trainer.trainer",
            _patch("Trainer.save_checkpoint", _around.span("checkpoint")),
        ),
    }


def _patch(path: str, make: _around.Make) -> Patch:
    return partial(_wrap, path, make)


def _wrap(path: str, make: _around.Make, patches: PatchSet, module: ModuleType) -> None:
    _around.wrap(patches, module, path, make)


def _read_metrics(
    writer: Recorder, connector: Any, metrics: Any, step: Any = None, *_: Any, **__: Any
) -> None:
    """Report with the number of optimizer steps. Lightning's loggers count batches from 0."""
    _around.report(writer, metrics, connector.trainer.global_step if step is None else step)


KIND = "trainer"
PARTS = parts("lightning.pytorch")

"""MLflow: ``log_metric`` and ``log_metrics`` both go through ``MlflowClient``. Source: mlflow 3."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from dfx_agent.shim.adapters import Parts, _tracker
from dfx_agent.shim.adapters._around import before, wrap
from dfx_agent.shim.patches import PatchSet
from dfx_agent.shim.recorder import Recorder

KIND = "tracker"


def _patch_client(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "MlflowClient.log_metric", before(_read_metric))
    wrap(patches, module, "MlflowClient.log_batch", before(_read_batch))


def _read_metric(
    writer: Recorder,
    _client: Any,
    run_id: str,  # noqa: ARG001 (may be given by name)
    key: str,
    value: Any,
    timestamp: Any = None,  # noqa: ARG001 (may be given by name)
    step: Any = None,
    *_: Any,
    **__: Any,
) -> None:
    """MLflow replaces a missing step by 0, so 0 stands for the current step of the job."""
    _tracker.report(writer, {key: value}, step or None)


def _read_batch(
    writer: Recorder,
    _client: Any,
    run_id: str,  # noqa: ARG001 (may be given by name)
    metrics: Sequence[Any] = (),
    *_: Any,
    **__: Any,
) -> None:
    # once per key: a run with several models lists each metric once per model
    for metric in {metric.key: metric for metric in metrics}.values():
        _tracker.report(writer, {metric.key: metric.value}, metric.step or None)


PARTS: Parts = {
    "client": ("mlflow.tracking.client", _patch_client),
}

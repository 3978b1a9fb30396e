"""Code that all tracker adapters share. A report that an adapter has already is ignored."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from dfx_agent.shim.adapters import _around, trackers_are_quiet
from dfx_agent.shim.patches import PatchSet
from dfx_agent.shim.recorder import Recorder


def report(writer: Recorder, values: Any, step: Any) -> None:
    """Record numbers under the job's own names. A tracker does not change the step."""
    if not trackers_are_quiet():
        _around.report(writer, values, step)


def read_log(writer: Recorder, _run: Any, data: Any, step: Any = None, *_: Any, **__: Any) -> None:
    """Read a call of ``Run.log``, of Weights & Biases or SwanLab."""
    report(writer, data, step)


def patch_summary_writer(patches: PatchSet, module: ModuleType) -> None:
    """Patch ``SummaryWriter`` of TensorBoard, in torch or tensorboardX."""
    _around.wrap(patches, module, "SummaryWriter.add_scalar", _around.before(_read_scalar))
    _around.wrap(patches, module, "SummaryWriter.add_scalars", _around.before(_read_scalars))


def _read_scalar(
    writer: Recorder,
    _summary: Any,
    tag: str,
    scalar_value: Any,
    global_step: Any = None,
    *_: Any,
    **__: Any,
) -> None:
    report(writer, {tag: scalar_value}, global_step)


def _read_scalars(
    writer: Recorder,
    _summary: Any,
    main_tag: str,
    tag_scalar_dict: Any,
    global_step: Any = None,
    *_: Any,
    **__: Any,
) -> None:
    values = {f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()}
    report(writer, values, global_step)

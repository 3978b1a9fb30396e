"""SwanLab: ``swanlab.log`` and ``run.log``. Source: swanlab 0.8 (``Run``), 0.6 (``SwanLabRun``)."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from dfx_agent.shim.adapters import _tracker
from dfx_agent.shim.adapters._around import before, wrap
from dfx_agent.shim.patches import PatchSet

KIND = "tracker"


def _patch_run(owner: str) -> Callable[[PatchSet, ModuleType], None]:
    def patch(patches: PatchSet, module: ModuleType) -> None:
        wrap(patches, module, f"{owner}.log", before(_tracker.read_log))

    return patch


PARTS: dict[str, tuple[str, Callable[[PatchSet, ModuleType], None]]] = {
    "log": ("swanlab.sdk.internal.run", _patch_run("Run")),
    "log_v06": ("swanlab.data.run.main", _patch_run("SwanLabRun")),
}

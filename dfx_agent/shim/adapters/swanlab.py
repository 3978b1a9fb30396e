"""SwanLab: ``swanlab.log`` and ``run.log``. Source: swanlab 0.8 (``Run``), 0.6 (``SwanLabRun``)."""

from __future__ import annotations

from types import ModuleType

from dfx_agent.shim.adapters import Parts, Patch, _tracker
from dfx_agent.shim.adapters._around import before, wrap
from dfx_agent.shim.patches import PatchSet

KIND = "tracker"


def _patch_run(owner: str) -> Patch:
    def patch(patches: PatchSet, module: ModuleType) -> None:
        wrap(patches, module, f"{owner}.log", before(_tracker.read_log))

    return patch


PARTS: Parts = {
    "log": ("swanlab.sdk.internal.run", _patch_run("Run")),
    "log_v06": ("swanlab.data.run.main", _patch_run("SwanLabRun")),
}

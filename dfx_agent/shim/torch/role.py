"""Derives the role of a process that has no rank from a launcher and no name from the job.

A process that calls backward is a trainer. A process that only serves has no stage, optimizer or
collective. Therefore an armed guest installs one hook on all modules. A module that is called three
times without gradients makes the process a rank of role "rollout", until it trains.

The hook is removed then, after 2,000 calls (1 to 2 us each), at the first backward, and before
anything is compiled.
"""

from __future__ import annotations

import sys
from typing import Any

from dfx_agent.shim import compiling, identity, imports, recorder
from dfx_agent.shim.patches import PatchSet
from dfx_agent.shim.torch import modules, step_hooks
from dfx_agent.shim.torch.modules import SERVING
from dfx_agent.wire import variables
from dfx_agent.wire.layout import UNKNOWN

ROLE = "rollout"

_MAX_CALLS = 2_000
_ENOUGH_CALLS = 3


def install() -> None:
    """Start to derive the role; called when torch has been imported."""
    if variables.ROLE.value() or identity.from_environment().rank != UNKNOWN:
        return
    step_hooks.before_next_backward.append(_be_a_trainer)
    if recorder.current is None and recorder.start_late is not None:
        SERVING.install(_hook_all_modules)
        imports.when_imported("torch._dynamo.eval_frame", _make_way_for_compilers)


def _make_way_for_compilers() -> None:
    if SERVING.is_active:
        modules.leave_before_compile()


def _hook_all_modules(patches: PatchSet) -> None:
    register = sys.modules["torch.nn.modules.module"].register_module_forward_pre_hook
    patches.on_restore(register(_Calls()).remove)
    step_hooks.before_next_backward.append(SERVING.restore)


class _Calls:
    """Counts calls of modules without gradients, in any thread."""

    def __init__(self) -> None:
        self._is_trained = sys.modules["torch"].is_grad_enabled
        self._num_calls = 0
        self._num_by_module: dict[int, int] = {}

    def __call__(self, module: Any, _args: Any) -> None:
        if not SERVING.is_active or compiling.is_compiling():
            return
        try:
            self._num_calls += 1
            if recorder.current is not None or self._num_calls > _MAX_CALLS:
                SERVING.restore()
            elif not self._is_trained() and self._has_served(module):
                SERVING.restore()
                _become_a_rank()
        except Exception:  # noqa: BLE001 (never into the job)
            SERVING.restore()

    def _has_served(self, module: Any) -> bool:
        number = self._num_by_module.get(id(module), 0) + 1
        self._num_by_module[id(module)] = number
        return number == _ENOUGH_CALLS and next(module.parameters(), None) is not None


def _become_a_rank() -> None:
    loading = sys.modules.get("torch.utils.data")
    is_worker = loading is not None and loading.get_worker_info() is not None
    start = recorder.start_late
    if start is not None and not is_worker:  # a data loader's worker prepares data for a trainer
        is_named = identity.from_environment().role != identity.UNNUMBERED  # such as a Ray actor
        start(role=None if is_named else ROLE)


def _be_a_trainer() -> None:
    """Change a derived role to "trainer"; a role from the job or a framework stays."""
    writer = recorder.active()
    if writer is not None and writer.identity.role in {ROLE, identity.UNNUMBERED}:
        writer.update_identity({"role": "trainer"})

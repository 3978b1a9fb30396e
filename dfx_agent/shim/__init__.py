"""The guest: a few functions that a training process calls, all no-ops until ``init``.

    import dfx_agent.shim as dfx

    dfx.init(role="trainer")
    for step in range(1, num_steps + 1):
        dfx.set_step(step)
        with dfx.stage("rollout"):
            ...
        with dfx.wait("barrier"):
            dist.barrier()
        dfx.tokens("response", num_response_tokens)
        dfx.scalars({"actor/ppo_kl": kl, "actor/grad_norm": norm}, step=step)

Under ``dfx-agent run`` and with ``DFX_AGENT=1`` the process is armed before the first line of its
own code: the segment is created at the first record, ``init`` only adds what it knows better.
Nothing here raises into the job, waits for a device, takes a lock per record or logs in the loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dfx_agent.shim import compiling, recorder
from dfx_agent.shim.ledger import observe
from dfx_agent.shim.lifecycle import guest
from dfx_agent.shim.spans import stage, wait

__all__ = [
    "init",
    "ledger",
    "policy_version",
    "queue",
    "scalar",
    "scalars",
    "set_step",
    "shutdown",
    "stage",
    "tokens",
    "wait",
]


def init(
    *,
    run: str | None = None,
    role: str | None = None,
    framework: str | None = None,
    rank: int | None = None,
    local_rank: int | None = None,
    world_size: int | None = None,
    directory: str | None = None,
) -> bool:
    """Start recording in this process; True when it is observed.

    What is not given comes from the environment (RANK, LOCAL_RANK, WORLD_SIZE, DFX_RUN, DFX_ROLE,
    DFX_FRAMEWORK, DFX_DIR). Called again, it updates what is given. A folder that cannot be used is
    said once on stderr, and the job runs unobserved.
    """
    return guest.start(
        directory,
        run=run,
        role=role,
        framework=framework,
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
    )


def scalar(name: str, value: Any, step: int | None = None) -> None:
    """One metric under the framework's own name; a device tensor is read later."""
    if not compiling.is_compiling():
        writer = recorder.current or recorder.active()
        if writer is not None:
            writer.scalar(name, value, step)


def scalars(values: Mapping[str, Any], step: int | None = None) -> None:
    """A tracker's dict as it is; entries that are not numbers are passed over."""
    if not compiling.is_compiling():
        writer = recorder.current or recorder.active()
        if writer is not None:
            writer.scalars(values, step)


def tokens(kind: str, n: int) -> None:
    """Tokens processed by this rank since the last call: prompt, response, ..."""
    if not compiling.is_compiling():
        writer = recorder.current or recorder.active()
        if writer is not None:
            writer.tokens(kind, n)


def queue(name: str, depth: int) -> None:
    """Items in a queue now."""
    if not compiling.is_compiling():
        writer = recorder.current or recorder.active()
        if writer is not None:
            writer.queue(name, depth)


def ledger(boundary: str, batch: Any, *, ids: Any = None, groups: Any = None) -> None:
    """What ``batch`` looks like where it crosses ``boundary``: shapes, masks, NaN, ids, groups.

    A mapping, TensorDict, DataProto, dataclass, tensor or list of samples. ``ids`` and ``groups``
    (B,) name the samples where the batch has no column for them.
    """
    if not compiling.is_compiling():
        writer = recorder.current or recorder.active()
        if writer is not None:
            observe(writer, boundary, batch, ids=ids, groups=groups)


def policy_version(version: int) -> None:
    """Version of the weights this process acts with."""
    if not compiling.is_compiling():
        writer = recorder.current or recorder.active()
        if writer is not None:
            writer.policy_version(version)


def set_step(n: int) -> None:
    """Begin training step ``n`` in this context and, for threads without one, in this process."""
    compiling.look_for_torch()
    if not compiling.is_compiling():
        writer = recorder.current or recorder.active()
        if writer is not None:
            writer.has_own_steps = True
            writer.set_step(n)


def shutdown() -> None:
    """Orderly end: the agent shows the process as exited. Later calls are no-ops."""
    guest.stop()

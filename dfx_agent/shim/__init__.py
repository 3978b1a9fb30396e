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

Under ``dfx-agent run`` and with ``DFX_AGENT=1``, the guest is armed before the first line of the
job. It then creates its segment at the first record, and ``init`` only adds details. No function
raises into the job, waits for a device, takes a lock per record or writes to a log in the loop.
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
    """Start recording in this process; return whether dfx-agent observes it.

    Arguments that are None come from the environment (DFX_RUN, DFX_ROLE, DFX_FRAMEWORK, RANK,
    LOCAL_RANK, WORLD_SIZE, DFX_DIR). A second call updates the given values. If the folder cannot
    be used, the guest prints one line to stderr and the job runs unobserved.

    >>> import dfx_agent.shim as dfx
    >>> dfx.init(run="grpo-7b", role="trainer", rank=0, world_size=8)
    True
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
    """Record one metric under the framework's own name, at ``step`` or the current step.

    ``value`` is a number or a tensor with one element. A tensor on a device is read later, when
    the device has computed it.

    >>> import dfx_agent.shim as dfx
    >>> dfx.scalar("actor/grad_norm", 0.7, step=3)
    """
    if not compiling.is_compiling():
        writer = recorder.current or recorder.active()
        if writer is not None:
            writer.scalar(name, value, step)


def scalars(values: Mapping[str, Any], step: int | None = None) -> None:
    """Record the numbers of a tracker's dict, at ``step`` or the current step.

    Entries that are not numbers (texts, images) are ignored.

    >>> import dfx_agent.shim as dfx
    >>> dfx.scalars({"actor/ppo_kl": 0.02, "actor/entropy": 1.3, "comment": "warm-up"}, step=3)
    """
    if not compiling.is_compiling():
        writer = recorder.current or recorder.active()
        if writer is not None:
            writer.scalars(values, step)


def tokens(kind: str, n: int) -> None:
    """Record that this rank processed ``n`` more tokens of a kind, such as "prompt" or "response".

    >>> import dfx_agent.shim as dfx
    >>> dfx.tokens("response", 4096)
    """
    if not compiling.is_compiling():
        writer = recorder.current or recorder.active()
        if writer is not None:
            writer.tokens(kind, n)


def queue(name: str, depth: int) -> None:
    """Record how many items a queue contains now.

    >>> import dfx_agent.shim as dfx
    >>> dfx.queue("rollouts", 12)
    """
    if not compiling.is_compiling():
        writer = recorder.current or recorder.active()
        if writer is not None:
            writer.queue(name, depth)


def ledger(boundary: str, batch: Any, *, ids: Any = None, groups: Any = None) -> None:
    """Record the shape of a batch that passes a boundary between two stages.

    The guest records shapes, mask sums, NaN and Inf, and hashes of sample and group ids. ``batch``
    is a mapping, TensorDict, DataProto, dataclass, tensor or list of samples. ``ids`` and
    ``groups``, of shape (B,), name the samples if the batch has no column for them.

    >>> import dfx_agent.shim as dfx
    >>> batch = {"tokens": [[5, 7], [5, 9]], "rewards": [0.0, 1.0]}
    >>> dfx.ledger("rollout", batch, ids=[10, 11], groups=[10, 10])
    """
    if not compiling.is_compiling():
        writer = recorder.current or recorder.active()
        if writer is not None:
            observe(writer, boundary, batch, ids=ids, groups=groups)


def policy_version(version: int) -> None:
    """Record the version of the weights that this process generates with.

    >>> import dfx_agent.shim as dfx
    >>> dfx.policy_version(41)
    """
    if not compiling.is_compiling():
        writer = recorder.current or recorder.active()
        if writer is not None:
            writer.policy_version(version)


def set_step(n: int) -> None:
    """Start training step ``n``, in this context and in threads that have no context of their own.

    >>> import dfx_agent.shim as dfx
    >>> for step in range(1, 3):
    ...     dfx.set_step(step)
    """
    compiling.look_for_torch()
    if not compiling.is_compiling():
        writer = recorder.current or recorder.active()
        if writer is not None:
            writer.has_own_steps = True
            writer.set_step(n)


def shutdown() -> None:
    """Stop recording; the agent shows that the process exited. Later calls are no-ops.

    >>> import dfx_agent.shim as dfx
    >>> dfx.shutdown()
    """
    guest.stop()

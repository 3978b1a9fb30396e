"""The identity of this process, from the environment variables of its launcher."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Mapping
from typing import Any

from dfx_agent.wire import Identity, variables
from dfx_agent.wire.layout import UNKNOWN

# role of a process without a rank, until it is seen to train or to serve
UNNUMBERED = "driver"

_NUMBERS = frozenset({"rank", "local_rank", "world_size", "node_rank", "attempt"})
_LARGEST = 0x7FFFFFFF
_MAX_DIGITS = 20

# torchrun, Open MPI, MPICH/Intel MPI, Slurm: first one that is set wins
_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_WORLD_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_NODE_RANK = ("GROUP_RANK", "NODE_RANK", "OMPI_COMM_WORLD_NODE_RANK")


def from_environment() -> Identity:
    """Identity of this process; unknown fields are -1 or ""."""
    in_slurm_step = "SLURM_STEP_ID" in os.environ
    rank = _first_int(_RANK + (("SLURM_PROCID",) if in_slurm_step else ()))
    return Identity(
        run=variables.RUN.value() or _run_name(),
        role=variables.ROLE.value() or _role_in_ray() or _role_of(rank),
        framework=variables.FRAMEWORK.value(),
        host=variables.NODE.value() or os.uname().nodename,
        rank=rank,
        local_rank=_first_int(_LOCAL_RANK + (("SLURM_LOCALID",) if in_slurm_step else ())),
        world_size=_first_int(_WORLD_SIZE + (("SLURM_NTASKS",) if in_slurm_step else ())),
        node_rank=_first_int(_NODE_RANK + (("SLURM_NODEID",) if in_slurm_step else ())),
        attempt=max(0, _first_int(("TORCHELASTIC_RESTART_COUNT",))),
    )


def checked(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The given fields without None; raises ValueError that names a field of the wrong type."""
    given = {key: value for key, value in fields.items() if value is not None}
    for key, value in given.items():
        if key not in _NUMBERS:
            if not isinstance(value, str):
                raise ValueError(f"{key}={value!r} is not text")
            continue
        try:
            given[key] = int(value) if isinstance(value, str) else operator.index(value)
        except (TypeError, ValueError):
            raise ValueError(f"{key}={value!r} is not a whole number") from None
        if not UNKNOWN <= given[key] <= _LARGEST:
            raise ValueError(f"{key}={value!r} is not a number from 0 to {_LARGEST}")
    return given


def _run_name() -> str:
    """A name that all ranks of a job share and that differs between two jobs on this host."""
    argv = getattr(sys, "argv", None) or [""]
    stem = os.path.splitext(os.path.basename(argv[0]))[0] or "python"
    run_id = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    if run_id != "none":
        return f"{stem}-{run_id[:8]}"
    if (ray_job := _ray_job()) is not None:
        return ray_job
    return f"{stem}-{os.environ.get('MASTER_PORT') or os.getpid()}"


def _role_of(rank: int) -> str:
    return UNNUMBERED if rank == UNKNOWN else "trainer"


def _role_in_ray() -> str:
    """Role by the class of the Ray actor in this process; "" for any other process."""
    worker = _ray_worker()
    try:
        actor = worker.actors[worker.actor_id]
    except Exception:  # noqa: BLE001 (private to Ray; no actor, or another version)
        return ""
    from dfx_agent.wire.actor_roles import role_of_actor  # noqa: PLC0415 (only where Ray is)

    return role_of_actor(type(actor).__name__)


def _ray_worker() -> Any:
    return getattr(sys.modules.get("ray._private.worker"), "global_worker", None)


def _ray_job() -> str | None:
    """A name that the driver and all actors share; None before ``ray.init`` and without Ray."""
    worker = _ray_worker()
    try:
        session, job = worker.node.session_name, worker.current_job_id.hex()
    except Exception:  # noqa: BLE001 (private to Ray; not connected, or another version)
        return None
    return f"ray-{session.rpartition('_')[2]}-{job}"


def _first_int(names: tuple[str, ...]) -> int:
    for name in names:
        text = os.environ.get(name, "")
        if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS:
            return min(int(text), _LARGEST)
    return UNKNOWN

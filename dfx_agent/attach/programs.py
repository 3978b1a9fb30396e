"""What a process is, by command line and environment: launcher, rank, actor or helper."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from dfx_agent.attach import ray
from dfx_agent.attach.processes import HostProcess, ProcessTable
from dfx_agent.base.text import whole_number
from dfx_agent.wire.actor_roles import role_of_actor

_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_LAUNCHERS = frozenset(
    {
        "torchrun", "accelerate", "deepspeed", "torch.distributed.run", "torch.distributed.launch",
        "accelerate.commands.launch", "deepspeed.launcher.launch", "deepspeed.launcher.runner",
        "mpirun", "mpiexec", "prterun", "orterun", "prted", "orted", "hydra_pmi_proxy", "srun",
        "slurmstepd", "horovodrun", "dfx_agent.commands.demo.launcher",
    }
)  # fmt: skip
_NOT_A_PART = ("multiprocessing.resource_tracker", "_inductor/compile_worker")
_AGENT = frozenset({"dfx-agent", "dfx_agent"})  # the script, and `python -m dfx_agent`
_OPTIONS_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_FORK_SERVER = "multiprocessing.forkserver"
_SPAWNED = "--multiprocessing-fork"
_DATA_LOADER_NAMES = ("pt_data_worker", "pt_data_pin")
_PRIME_PROGRAMS = {"trainer": "trainer", "orchestrator": "orchestrator", "inference": "rollout"}
_OUTPUT_FOLDER = re.compile(r"""^\s*output_dir\s*=\s*["']([^"']+)["']""", re.MULTILINE)


def is_launcher(process: HostProcess) -> bool:
    """Whether it is torchrun, mpirun or the like, which start ranks and compute nothing."""
    return program_of(process) in _LAUNCHERS


def program_of(process: HostProcess) -> str:
    """Name of the program, or of the script or module that Python runs."""
    words = process.words
    if not words or not words[0].strip():
        return process.name
    if process.is_python and os.path.basename(words[0]).startswith("python"):
        return _script_or_module(words[1:])
    return os.path.basename(words[0]).split()[0].rstrip(":")


def _script_or_module(words: tuple[str, ...]) -> str:
    """Name what an interpreter with these arguments runs: "train.py", a module, or "-c"."""
    rest = iter(words)
    for word in rest:
        if word in _OPTIONS_WITH_VALUE:
            next(rest, None)
        elif word == "-m":
            return next(rest, "")
        elif word == "-c" or not word.startswith("-"):
            return os.path.basename(word)
    return "python"


def script_of(process: HostProcess) -> str:
    """Name of the script, as the guest derives it from ``sys.argv[0]``."""
    if process.words[:1] and process.words[0].startswith(ray.ACTOR):
        return process.words[0].removeprefix(ray.ACTOR).partition(".")[0]
    program = program_of(process)
    is_file = program.endswith(".py")
    return program.removesuffix(".py") if is_file else program.rpartition(".")[2] or "python"


def job_key(process: HostProcess) -> str | None:
    """A key that all processes of one job on this machine share; None without a launcher."""
    if rank_of(process) is None and not process.name.startswith(ray.ACTOR):
        return None
    get = process.environment.get
    names = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
    mpi = next((value for name in names if (value := get(name))), None)
    if get("RAY_JOB_ID"):
        return ray.key_of_actor(process)
    if (run_id := get("TORCHELASTIC_RUN_ID", "none")) != "none":
        return f"torchelastic {run_id} {get('MASTER_ADDR')}:{get('MASTER_PORT')}"
    if mpi or get("MASTER_PORT"):
        return f"mpi {mpi}" if mpi else f"master {get('MASTER_ADDR')}:{get('MASTER_PORT')}"
    if _is_slurm_rank(process.environment):
        return f"slurm {get('SLURM_JOB_ID')}.{get('SLURM_STEP_ID')}"
    return None


def rank_of(process: HostProcess) -> int | None:
    environment = process.environment
    names = (*_RANK, "SLURM_PROCID") if _is_slurm_rank(environment) else _RANK
    texts = (environment.get(name, "") for name in names)
    return next((rank for rank in map(whole_number, texts) if rank is not None), None)


def _is_slurm_rank(environment: Mapping[str, str]) -> bool:
    """Whether it is a rank of Slurm; a step with one task may be somebody's shell."""
    return "SLURM_STEP_ID" in environment and environment.get("SLURM_NTASKS", "1") != "1"


def role_of(process: HostProcess, table: ProcessTable) -> str:
    if actor := next((w for w in process.words[:1] if w.startswith(ray.ACTOR)), ""):
        return role_of_actor(actor.removeprefix(ray.ACTOR).partition(".")[0])
    if "vllm" in process.name.lower() or "sglang" in process.name.lower():
        return "rollout"
    if (program := _prime_program(process)) is not None:
        return _PRIME_PROGRAMS[program]
    if is_by_multiprocessing(process) or _is_below_fork_server(process, table):
        return "collector"
    return "trainer" if rank_of(process) is not None else ""


def is_helper(process: HostProcess) -> bool:
    line = " ".join(process.words)
    is_ray_idle = process.words[:1] == (f"{ray.ACTOR}IDLE",)
    names = process.name, process.current_name  # a worker sets its name once torch is loaded
    is_part_of_loader = any(name.startswith(_DATA_LOADER_NAMES) for name in names)
    is_agent = process.pid == os.getpid() or program_of(process) in _AGENT
    is_part_of_other = any(part in line for part in _NOT_A_PART)
    return is_ray_idle or is_part_of_loader or is_agent or is_part_of_other


def is_by_multiprocessing(process: HostProcess) -> bool:
    return _SPAWNED in process.words


def _is_below_fork_server(process: HostProcess, table: ProcessTable) -> bool:
    parent = table.get(process.parent)
    return (
        _FORK_SERVER in " ".join(process.words)
        and parent is not None
        and is_fork_of(process, parent)
    )


def is_fork_of(process: HostProcess, parent: HostProcess) -> bool:
    """Whether it runs no program of its own: it still has the parent's command line."""
    return process.is_python and process.words == parent.words


def _prime_program(process: HostProcess) -> str | None:
    """Which of prime-rl's programs this is: ``-m prime_rl.trainer.rl.train``, ``orchestrator``."""
    if not process.is_python:
        return None
    modules = [word for word in process.words if word.startswith("prime_rl.")]
    names = [modules[0].split(".")[1]] if modules else []
    names.append(program_of(process))
    return next((name for name in names if name in _PRIME_PROGRAMS), None)


def output_folder(process: HostProcess) -> str | None:
    """Output folder of a program of prime-rl, from flags or configuration; None for others."""
    if _prime_program(process) is None:
        return None
    words = process.words
    configured = None
    for word, value in zip(words, (*words[1:], ""), strict=True):
        flag, is_joined, joined = word.partition("=")
        if flag.strip("-").replace("_", "-") in {"output-dir", "trainer.output-dir"}:
            return os.path.normpath(os.path.join(process.folder, joined if is_joined else value))
        if value.endswith(".toml") and word == "@":
            configured = _folder_in(os.path.join(process.folder, value))
    return os.path.normpath(os.path.join(process.folder, configured)) if configured else None


def _folder_in(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            match = _OUTPUT_FOLDER.search(file.read(1 << 16))
    except OSError:
        return None
    return match[1] if match else None


def is_inside(folder: str | None, other: str) -> bool:
    """Whether one folder is in the other: the orchestrator writes below the trainer's folder."""
    if folder is None:
        return False
    return os.path.commonpath([folder, other]) in {folder, other}

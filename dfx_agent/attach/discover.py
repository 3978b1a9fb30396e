"""From one pid to the whole job on this machine: its ranks, actors, collectors and programs.

A job is found by what its launcher leaves in the environment of every process (the rendezvous of
torchrun, accelerate and deepspeed, the name space of MPI, the step of Slurm, the job of Ray), by
descent from the process that was named, and for the programs of prime-rl by their output folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from dfx_agent.attach import refusals
from dfx_agent.attach.processes import Process, ProcessTable

_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_LAUNCHERS = frozenset(
    {
        "torchrun", "accelerate", "deepspeed", "torch.distributed.run", "torch.distributed.launch",
        "accelerate.commands.launch", "deepspeed.launcher.launch", "deepspeed.launcher.runner",
        "mpirun", "mpiexec", "prterun", "orterun", "prted", "orted", "hydra_pmi_proxy", "srun",
        "slurmstepd", "horovodrun",
    }
)  # fmt: skip
_NOT_A_PART = (
    "multiprocessing.resource_tracker",
    "_inductor/compile_worker",
    "_inductor.compile_worker",
)
_FORK_SERVER = "multiprocessing.forkserver"
_SPAWNED = "--multiprocessing-fork"
_RAY = "ray::"
_DATA_LOADER_NAMES = ("pt_data_worker", "pt_data_pin")
_TORCH = "libtorch"
_PRIME_PROGRAMS = {"trainer": "trainer", "orchestrator": "orchestrator", "inference": "rollout"}
_OUTPUT_FOLDER = re.compile(r"""^\s*output_dir\s*=\s*["']([^"']+)["']""", re.MULTILINE)
# the first that is part of an actor's class name
_ROLE_OF_ACTOR = (
    ("actorrollout", "actor"), ("reference", "ref"), ("reward", "reward"), ("critic", "critic"),
    ("taskrunner", "driver"), ("rollout", "rollout"), ("vllm", "rollout"), ("sglang", "rollout"),
    ("inference", "rollout"), ("engine", "rollout"), ("policy", "actor"), ("actor", "actor"),
    ("learner", "learner"), ("collector", "collector"), ("orchestrator", "orchestrator"),
)  # fmt: skip


@dataclass(frozen=True)
class Member:
    """A process of the job, to bring the guest into.

    ``rank`` is None where its environment has none; "" is a ``role`` that only the process knows.
    """

    process: Process
    role: str
    rank: int | None

    @property
    def pid(self) -> int:
        return self.process.pid

    def __str__(self) -> str:
        what = f"rank {self.rank}" if self.rank is not None else self.role or "process"
        return f"{what} pid {self.pid}"


@dataclass
class Job:
    """The job that ``pid`` belongs to. AttachError when there is no such process.

    ``only_this``: the process itself and nothing else.
    """

    pid: int
    only_this: bool = False
    table: ProcessTable = field(default_factory=ProcessTable)

    def __post_init__(self) -> None:
        root = self.table.get(self.pid)
        if root is None:
            raise refusals.no_process(self.pid)
        self._root = root
        self._launchers: set[Process] = set()
        self._keys: set[str] = set()
        self._computing: set[Process] = set()
        self.run = self._run_name()

    def members(self) -> list[Member]:
        """Processes of the job that run now, by rank; call again for those that came since."""
        self.table.refresh()
        found = [self._root] if self.only_this else self._find()
        members = [self._member(process) for process in found if process.is_alive()]
        return sorted(members, key=lambda m: (m.rank is None, m.rank or 0, m.pid))

    def _find(self) -> list[Process]:
        inside: dict[int, Process] = {}
        tops = {self._top_of(self._root), *self._launchers}
        if folder := _output_folder(self._root):
            others = (p for p in self.table if _is_inside(_output_folder(p), folder))
            tops |= {self._top_of(process) for process in others}
        self._add_families(tops, inside)
        self._keys |= {key for process in inside.values() if (key := _key(process))}
        if self._keys:
            others = (p for p in self.table if p.pid not in inside and _key(p) in self._keys)
            self._add_families({self._top_of(process) for process in others}, inside)
        return [process for process in inside.values() if self._is_part(process, inside)]

    def _add_families(self, tops: set[Process], inside: dict[int, Process]) -> None:
        """Everything below ``tops``; launchers are remembered, their ranks come and go."""
        for top in tops:
            if self.table.get(top.pid) == top:
                inside |= {process.pid: process for process in self.table.family(top)}
                if is_launcher(top):
                    self._launchers.add(top)

    def _top_of(self, process: Process) -> Process:
        """Its launcher; the parent of a process that multiprocessing started; or itself."""
        above = list(self.table.ancestors(process))
        launcher = next((a for a in above if is_launcher(a)), None)
        if launcher is not None and _rank(process) is not None:
            return launcher
        if process.name.startswith(_RAY) and _key(process) is None and above:
            return above[0]  # the raylet
        for ancestor in above:
            is_child = _is_by_multiprocessing(process) or _is_fork_of(process, ancestor)
            if not is_child or not ancestor.is_python:
                break
            process = ancestor
        return process

    def _is_part(self, process: Process, inside: Mapping[int, Process]) -> bool:
        """Whether to attach to it: ranks and the named process always, others when they compute."""
        if not process.is_python or is_launcher(process) or _is_helper(process):
            return False
        above = [a for a in self.table.ancestors(process) if a.pid in inside and a.is_python]
        parent = next((a for a in above if not is_launcher(a)), None)
        if process == self._root and parent is None:
            return True
        if parent is not None and _is_fork_of(process, parent) and _rank(process) is not None:
            return False  # a rank's own workers
        if _rank(process) is not None and not any(_rank(a) == _rank(process) for a in above):
            return True
        if parent is None and not self._keys and not is_launcher(self._root):
            return True
        if process not in self._computing and process.has_mapped(_TORCH):
            self._computing.add(process)
        return process in self._computing

    def _member(self, process: Process) -> Member:
        return Member(process, _role(process, self.table), _rank(process))

    def _run_name(self) -> str:
        """The name that the guest of a rank would give itself."""
        ranks = self.members()
        first = next((m.process for m in ranks if m.rank is not None), None)
        first = first or (ranks[0].process if ranks else self._root)
        environment = first.environment
        if environment.get("DFX_RUN"):
            return environment["DFX_RUN"]
        stem = _script(first)
        run_id = environment.get("TORCHELASTIC_RUN_ID", "none")
        if run_id != "none":
            return f"{stem}-{run_id[:8]}"
        ray_job = environment.get("RAY_JOB_ID")
        return f"{stem}-{ray_job or environment.get('MASTER_PORT') or self._root.pid}"


def is_launcher(process: Process) -> bool:
    """torchrun, mpirun and the like: they start ranks and compute nothing."""
    words = process.words
    if not words:
        return process.name in _LAUNCHERS
    if _program(process) in _LAUNCHERS:
        return True
    return any(a == "-m" and b in _LAUNCHERS for a, b in pairwise(words))


def _program(process: Process) -> str:
    """Name of the program; of the script, where Python runs one."""
    words = [os.path.basename(word) for word in process.words]
    if words and process.is_python and words[0].startswith("python"):
        words = [word for word in words[1:] if not word.startswith("-")]
    return words[0].split()[0].rstrip(":") if words and words[0].strip() else process.name


def _script(process: Process) -> str:
    """As ``sys.argv[0]`` would give it, without folder and ending."""
    words = process.words
    for a, b in pairwise(words):
        if a == "-m":
            return b.rpartition(".")[2]
    if words and words[0].startswith(_RAY):
        return words[0].removeprefix(_RAY).partition(".")[0]
    return os.path.splitext(_program(process))[0] or "python"


def _key(process: Process) -> str | None:
    """What all processes of one job on this machine share; None without a launcher's traces."""
    if _rank(process) is None and not process.name.startswith(_RAY):
        return None
    get = process.environment.get
    names = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
    mpi = next((value for name in names if (value := get(name))), None)
    if job := get("RAY_JOB_ID"):
        return f"ray {get('RAY_SESSION_NAME')} {job}"
    if (run_id := get("TORCHELASTIC_RUN_ID", "none")) != "none":
        return f"torchelastic {run_id} {get('MASTER_ADDR')}:{get('MASTER_PORT')}"
    if mpi or get("MASTER_PORT"):
        return f"mpi {mpi}" if mpi else f"master {get('MASTER_ADDR')}:{get('MASTER_PORT')}"
    if _is_slurm_rank(process.environment):
        return f"slurm {get('SLURM_JOB_ID')}.{get('SLURM_STEP_ID')}"
    return None


def _rank(process: Process) -> int | None:
    environment = process.environment
    names = (*_RANK, "SLURM_PROCID") if _is_slurm_rank(environment) else _RANK
    texts = (environment.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isascii() and text.isdigit()), None)


def _is_slurm_rank(environment: Mapping[str, str]) -> bool:
    """A step of one task may be somebody's shell."""
    return "SLURM_STEP_ID" in environment and environment.get("SLURM_NTASKS", "1") != "1"


def _role(process: Process, table: ProcessTable) -> str:
    if actor := next((w for w in process.words[:1] if w.startswith(_RAY)), ""):
        name = actor.removeprefix(_RAY).partition(".")[0].lower()
        return next((role for part, role in _ROLE_OF_ACTOR if part in name), "worker")
    if "vllm" in process.name.lower() or "sglang" in process.name.lower():
        return "rollout"
    if (program := _prime_program(process)) is not None:
        return _PRIME_PROGRAMS[program]
    if _is_by_multiprocessing(process) or _is_below_fork_server(process, table):
        return "collector"
    return "trainer" if _rank(process) is not None else ""


def _is_helper(process: Process) -> bool:
    line = " ".join(process.words)
    is_ray_idle = process.words[:1] == (f"{_RAY}IDLE",)
    is_part_of_loader = process.name.startswith(_DATA_LOADER_NAMES)
    return is_ray_idle or is_part_of_loader or any(part in line for part in _NOT_A_PART)


def _is_by_multiprocessing(process: Process) -> bool:
    return _SPAWNED in process.words


def _is_below_fork_server(process: Process, table: ProcessTable) -> bool:
    parent = table.get(process.parent)
    return (
        _FORK_SERVER in " ".join(process.words)
        and parent is not None
        and _is_fork_of(process, parent)
    )


def _is_fork_of(process: Process, parent: Process) -> bool:
    """Not a program of its own: it still has the parent's command line."""
    return process.is_python and process.words == parent.words


def _prime_program(process: Process) -> str | None:
    """Which of prime-rl's programs this is: ``-m prime_rl.trainer.rl.train``, ``orchestrator``."""
    if not process.is_python:
        return None
    modules = [word for word in process.words if word.startswith("prime_rl.")]
    names = [modules[0].split(".")[1]] if modules else []
    names.append(_program(process))
    return next((name for name in names if name in _PRIME_PROGRAMS), None)


def _output_folder(process: Process) -> str | None:
    """Of a program of prime-rl: from its flags or its configuration; None for all others."""
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
            found = _OUTPUT_FOLDER.search(file.read(1 << 16))
    except OSError:
        return None
    return found[1] if found else None


def _is_inside(folder: str | None, other: str) -> bool:
    """The same, or one within the other: the orchestrator writes below the trainer's folder."""
    if folder is None:
        return False
    return os.path.commonpath([folder, other]) in {folder, other}

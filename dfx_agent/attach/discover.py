"""Finds all processes of a job on this machine from one pid: ranks, actors, collectors, programs.

The members of a job are found by

- what its launcher sets in the environment of every process (the rendezvous of torchrun, accelerate
  and deepspeed, the name space of MPI, the step of Slurm, the job of Ray),
- descent from the given process,
- the output folder, for the programs of prime-rl.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dfx_agent.attach import ray, refusals
from dfx_agent.attach.processes import HostProcess, ProcessTable, is_zombie
from dfx_agent.attach.programs import (
    is_by_multiprocessing,
    is_fork_of,
    is_helper,
    is_inside,
    is_launcher,
    job_key,
    output_folder,
    program_of,
    rank_of,
    role_of,
    script_of,
)

_TORCH = "libtorch"


@dataclass(frozen=True)
class Member:
    """A process of the job that the guest should be loaded into."""

    process: HostProcess
    role: str
    """"" if only the process itself knows it."""
    rank: int | None
    """None if its environment has none."""

    @property
    def pid(self) -> int:
        return self.process.pid

    def __str__(self) -> str:
        what = f"rank {self.rank}" if self.rank is not None else self.role or "process"
        return f"{what} pid {self.pid}"


@dataclass
class DiscoveredJob:
    """The job that ``pid`` belongs to. Raises AttachError if there is no such process."""

    pid: int
    only_this: bool = False
    """Only the process itself and nothing else."""
    table: ProcessTable = field(default_factory=ProcessTable)

    def __post_init__(self) -> None:
        root = self.table.get(self.pid)
        if root is None:
            refuse = refusals.zombie if is_zombie(self.pid) else refusals.no_process
            raise refuse(self.pid)
        self._root = root
        self._launchers: set[HostProcess] = set()
        self._keys: set[str] = set()
        self._computing: set[HostProcess] = set()
        self.run = self._run_name()

    @property
    def program(self) -> str:
        """Program of the given process."""
        return program_of(self._root)

    def members(self) -> list[Member]:
        """Running processes of the job, by rank. Call again to find processes started since."""
        self.table.refresh()
        processes = [self._root] if self.only_this else self._find()
        members = [self._member(process) for process in processes if process.is_alive()]
        return sorted(members, key=lambda m: (m.rank is None, m.rank or 0, m.pid))

    def _find(self) -> list[HostProcess]:
        inside: dict[int, HostProcess] = {}
        tops = {self._top_of(self._root), *self._launchers}
        if folder := output_folder(self._root):
            others = (p for p in self.table if is_inside(output_folder(p), folder))
            tops |= {self._top_of(process) for process in others}
        self._add_families(tops, inside)
        programs = (process for process in inside.values() if not is_launcher(process))
        self._keys |= {key for process in programs if (key := job_key(process))}
        self._keys |= ray.keys_of_driver(self._root, self.table)
        if self._keys:
            of_ray = ray.drivers(self._keys, self.table)
            of_ray += ray.pooled_actors(self._keys, self.table)
            inside |= {process.pid: process for process in of_ray}
            others = (p for p in self.table if p.pid not in inside and job_key(p) in self._keys)
            self._add_families({self._top_of(process) for process in others}, inside)
        return [process for process in inside.values() if self._is_part(process, inside)]

    def _add_families(self, tops: set[HostProcess], inside: dict[int, HostProcess]) -> None:
        """Add everything below ``tops``; remember launchers, as their ranks start and exit."""
        for top in tops:
            if self.table.get(top.pid) == top:
                inside |= {process.pid: process for process in self.table.family(top)}
                if is_launcher(top):
                    self._launchers.add(top)

    def _top_of(self, process: HostProcess) -> HostProcess:
        """Launcher of a process, or the parent that started it by multiprocessing, or itself."""
        above = list(self.table.ancestors(process))
        launcher = next((a for a in above if is_launcher(a)), None)
        if launcher is not None and rank_of(process) is not None:
            return launcher
        if process.name.startswith(ray.ACTOR) and job_key(process) is None and above:
            return above[0]  # the raylet
        for ancestor in above:
            is_child = is_by_multiprocessing(process) or is_fork_of(process, ancestor)
            if not is_child or not ancestor.is_python:
                break
            process = ancestor
        return process

    def _is_part(self, process: HostProcess, inside: Mapping[int, HostProcess]) -> bool:
        """Whether to attach: always to ranks and the given process, to others if they use torch."""
        if not process.is_python or is_launcher(process) or is_helper(process):
            return False
        rank = rank_of(process)
        above = [
            ancestor
            for ancestor in self.table.ancestors(process)
            if ancestor.pid in inside and ancestor.is_python and not is_launcher(ancestor)
        ]
        if rank is not None and not any(rank_of(ancestor) == rank for ancestor in above):
            return True
        if above and rank is not None and is_fork_of(process, above[0]):
            return False  # a worker of the rank
        is_top = not above and not self._keys and not is_launcher(self._root)
        return process == self._root or is_top or self._computes(process)

    def _computes(self, process: HostProcess) -> bool:
        if process not in self._computing and process.has_mapped(_TORCH):
            self._computing.add(process)
        return process in self._computing

    def _member(self, process: HostProcess) -> Member:
        return Member(process, role_of(process, self.table), rank_of(process))

    def _run_name(self) -> str:
        """The name that the guest of a rank would choose for the run."""
        ranks = self.members()
        first = next((m.process for m in ranks if m.rank is not None), None)
        first = first or (ranks[0].process if ranks else self._root)
        environment = first.environment
        if environment.get("DFX_RUN"):
            return environment["DFX_RUN"]
        stem = script_of(first)
        run_id = environment.get("TORCHELASTIC_RUN_ID", "none")
        if run_id != "none":
            return f"{stem}-{run_id[:8]}"
        if ray_run := ray.run_name(self._keys, self.table):
            return ray_run
        return f"{stem}-{environment.get('MASTER_PORT') or self._root.pid}"

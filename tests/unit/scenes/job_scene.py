"""Segments written as a guest writes them, and an agent that reads them."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from dfx_agent.agent.agent import Agent
from dfx_agent.snapshot import RankRow, RunRow
from dfx_agent.wire import Identity, SegmentWriter, layout
from dfx_agent.wire.records import STAGE, STEP
from dfx_agent.wire.segment import start_ticks


class Job:
    """One process of a job: its segment, with the guest's calls in short form."""

    def __init__(self, folder: Path, rank: int = 0, **known) -> None:
        fields = {"run": "r", "role": "trainer", "framework": "verl", **known}
        self.segment = SegmentWriter(str(folder), Identity(rank=rank, **fields), num_records=4096)
        self.path = Path(self.segment.path)
        self.names: dict[str, int] = {}
        self.span = 0
        self.owner: subprocess.Popen | None = None

    def given_to_a_child(self) -> Job:
        """The segment says that another process writes it; ``die`` kills that one."""
        self.owner = subprocess.Popen(["sleep", "60"])
        fields = list(layout.PREAMBLE.unpack(self.path.read_bytes()[: layout.PREAMBLE.size]))
        fields[13:15] = self.owner.pid, start_ticks(self.owner.pid)
        write_at(self.path, 0, layout.PREAMBLE.pack(*fields))
        return self

    def name(self, text: str) -> int:
        if text not in self.names:
            self.names[text] = self.segment.add_name(text)
        return self.names[text]

    def point(self, kind: int, name: str, value: float, step: int) -> None:
        now = time.monotonic_ns()
        name_id = self.name(name) if name else 0
        self.segment.emit(now, now, value, step, 0, 0, 0, kind, name_id)

    def step(self, step: int) -> None:
        self.point(STEP, "", 0.0, step)

    def stage(self, name: str, kind: int = STAGE, seconds: float = 0.002, step: int = 0) -> None:
        self.span += 1
        begin = time.monotonic_ns()
        time.sleep(seconds)
        end = time.monotonic_ns()
        self.segment.emit(begin, end, 0.0, step, self.span, 0, 1, kind, self.name(name))

    def die(self) -> None:
        self.owner.kill()
        self.owner.wait()


def write_at(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def run_row(agent: Agent, run: str = "r", polls: int = 2) -> RunRow:
    for _ in range(polls):
        agent.poll()
        time.sleep(0.002)
    return {row.run: row for row in agent.snapshot().runs}[run]


def rank_row(agent: Agent, rank: str = "0", run: str = "r", polls: int = 2) -> RankRow:
    return {row.rank: row for row in run_row(agent, run, polls).ranks}[rank]

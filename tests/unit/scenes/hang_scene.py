"""A job in short form: real segments and processes, an agent that reads them, and the judges.

Only the clock that judges is put forward: ``look(14)`` is the verdict as it is 14 s later.
"""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.agent.local_run import LocalRun
from dfx_agent.agent.run_facts import RunReporter
from dfx_agent.facts.document import dumped, loaded
from dfx_agent.facts.run import RunFacts
from dfx_agent.hub.clocks import NodeClock
from dfx_agent.job.fold import JobFold
from dfx_agent.job.judging import JobJudge
from dfx_agent.job.own_node import OwnNode
from dfx_agent.node.process import Process
from dfx_agent.node.tracks import Tracks
from dfx_agent.snapshot import Verdict
from dfx_agent.snapshot.faults import Faults
from dfx_agent.wire import Identity, SegmentWriter, layout
from dfx_agent.wire.records import BLOCKING, COLLECTIVE, GROUP, NO_STEP, PEER, STAGE, STEP
from dfx_agent.wire.segment import start_ticks

WORLD_SIZE = 4
NUMBER = re.compile(r"\d[\d.]*(e-\d+)?")
SECOND = 10**9


class Rank:
    """The guest of one rank in short form; the process behind it is a real one."""

    def __init__(
        self, folder: Path, rank: int, world_size: int = WORLD_SIZE, owner: int = 0, **known
    ) -> None:
        """``owner``: the pid of a process that is there already."""
        fields = {"run": "r", "role": "trainer", **known}
        identity = Identity(rank=rank, world_size=world_size, **fields)
        self.rank = rank
        self.segment = SegmentWriter(str(folder), identity, num_records=1024)
        self.path = Path(self.segment.path)
        self.names: dict[str, int] = {}
        self.span = 0
        self.open_slots: list[tuple[int, int, int, int]] = []
        self.owner: subprocess.Popen[bytes] | None = None
        if owner:
            self._belongs_to(owner)
        else:
            self.runs("sleep", "300")

    def runs(self, *command: str, **options) -> None:
        """From its beginning; what it runs by itself sleeps."""
        self.owner = subprocess.Popen(command, stdin=subprocess.PIPE, **options)
        self._belongs_to(self.owner.pid)

    def _belongs_to(self, pid: int) -> None:
        fields = list(layout.PREAMBLE.unpack(self.path.read_bytes()[: layout.PREAMBLE.size]))
        fields[13:15] = pid, start_ticks(pid)
        with self.path.open("r+b") as file:
            file.write(layout.PREAMBLE.pack(*fields))

    def name(self, text: str) -> int:
        if text not in self.names:
            self.names[text] = self.segment.add_name(text)
        return self.names[text]

    def step(self, step: int) -> None:
        now = time.monotonic_ns()
        self.segment.emit(now, now, 0.0, step, 0, 0, 0, STEP, 0)

    def ended(self, stage: str, seconds: float = 0.0) -> None:
        """A stage that took this long and ends now."""
        self.span += 1
        now = time.monotonic_ns()
        begin = now - int(seconds * SECOND) - 1
        self.segment.emit(begin, now, 0.0, 0, self.span, 0, 1, STAGE, self.name(stage))

    def enters(
        self, name: str, kind: int = STAGE, sequence: int = NO_STEP, thread: int = 1
    ) -> None:
        self.span += 1
        parent = self.open_slots[-1][1] if self.open_slots else 0
        now, name_id = time.monotonic_ns(), self.name(name)
        slot = self.segment.inflight.enter(now, sequence, self.span, parent, thread, kind, name_id)
        self.open_slots.append((slot, self.span, now, kind))

    def waits(self, name: str, sequence: int = NO_STEP) -> None:
        self.enters(name, COLLECTIVE | BLOCKING, sequence)

    def sends_to(self, peer: int) -> None:
        self.waits("send@0", PEER - peer)

    def receives_from(self, peer: int) -> None:
        self.waits("recv@0", PEER - peer)

    def leaves(self) -> None:
        self.segment.inflight.leave(self.open_slots.pop()[0])

    def took_part(self, name: str, sequence: int, seconds: float = 0.0, thread: int = 1) -> None:
        self.span += 1
        now = time.monotonic_ns()
        begin = now - int(seconds * SECOND) - 1
        kind = COLLECTIVE | BLOCKING
        self.segment.emit(begin, now, 8.0, sequence, self.span, 0, thread, kind, self.name(name))

    def reports_group(self, group: str, num_enqueued: int) -> None:
        now = time.monotonic_ns()
        self.segment.emit(now, now, -1.0, num_enqueued, 0, 0, 0, GROUP, self.name(group))

    def writes_stacks(self, *functions: str) -> None:
        """As the guest does, some time after it moved; "FILE FUNCTION" where the file matters."""
        at = time.monotonic_ns() + SECOND
        places = [name.rpartition(" ") for name in reversed(functions)]
        calls = "\n".join(f'  File "{file or "train.py"}", line 7 in {f}' for file, _, f in places)
        text = (
            f"dfx-stacks 1 {self.owner.pid} {at} 0xaa\nname 0xaa 1 MainThread\n\n"
            f"Thread 0x00000000000000aa (most recent call first):\n{calls}\n"
        )
        self.path.with_suffix(".stacks").write_text(text)

    def writes_flight(
        self,
        *issued: tuple[str, int, bool],
        group: str = "0",
        seconds_ago: int = 0,
        longest_gap: int = 0,
    ) -> None:
        """As the guest does; of each collective operation, number of elements, finished or not."""
        entries = [
            [
                number,
                operation,
                [[size]],
                1,
                size,
                ["Float"],
                time.time_ns() - seconds_ago * SECOND,
                "scheduled",
                done,
                False,
            ]
            for number, (operation, size, done) in enumerate(issued, 1)
        ]
        record = {"format": 1, "time_ns": time.monotonic_ns() + SECOND, "rank": self.rank}
        record["longest_gap_ns"] = longest_gap * SECOND
        known = {"backend": "gloo", "name": group, "description": "default_pg"}
        known |= {"members_crc": 7, "members": list(range(WORLD_SIZE)), "entries": entries[::-1]}
        self.path.with_suffix(".flight").write_text(json.dumps({**record, "groups": [known]}))

    def stops(self) -> None:
        os.kill(self.owner.pid, signal.SIGSTOP)
        os.waitpid(self.owner.pid, os.WUNTRACED)

    def dies(self) -> None:
        if self.owner is None:
            return
        self.owner.kill()
        self.owner.wait()
        for pipe in (self.owner.stdin, self.owner.stdout):
            if pipe is not None:
                pipe.close()

    def ends(self, *, is_reaped: bool = True) -> None:
        """As ``ending`` set it up; not reaped, it stays a zombie."""
        self.owner.stdin.close()
        if is_reaped:
            self.owner.wait()
        else:
            os.waitid(os.P_PID, self.owner.pid, os.WEXITED | os.WNOWAIT)


def ending(how: str) -> tuple[str, ...]:
    """The command of a process that does this to itself as soon as its rank ``ends``."""
    return sys.executable, "-c", f"import os, sys; sys.stdin.read(1); {how}"


class Watch:
    """The hang judge of the run, by a clock of its own."""

    def __init__(self) -> None:
        faults = Faults()
        self.tracks, self.judge = Tracks(faults, "r"), JobJudge("r", faults)
        self.facts = RunFacts(run="r", node="", now_seconds=0.0)
        self._fold, self._node = JobFold("r", faults=faults), OwnNode(self.facts)

    def observe(
        self, processes: Mapping[tuple[str, str], Process], now_ns: int
    ) -> tuple[Verdict, ...]:
        read_seconds = time.monotonic()
        self.tracks.observe(processes, now_ns)
        self.facts = replace(
            self.facts,
            now_seconds=time.time(),
            now_ns=now_ns,
            seats=tuple(process.seat for process in processes.values()),
            ranks=self.tracks.facts(now_ns),
            quiet_seconds=self.tracks.quiet_seconds(now_ns),
        )
        self._fold.at(now_ns, time.time())
        self._fold.update(self._node, self.facts)
        return self.judge.judge_waits(self._fold.ranks(), self.facts.quiet_seconds, read_seconds)

    def watched(self, run: LocalRun) -> LocalRun:
        """A copy of the run as it is judged here."""
        run = copy.copy(run)
        run.tracks, run.job = self.tracks, copy.copy(run.job)
        run.job.judge = self.judge
        known = self.facts
        run.facts = replace(
            run.facts, now_ns=known.now_ns, ranks=known.ranks, quiet_seconds=known.quiet_seconds
        )
        return run


class Scene:
    """A few ranks, an agent that reads them, and the watch that judges."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agent = Agent(Config(str(folder)), reap=False)
        self.watch = Watch()
        self.reporter, self.hub = RunReporter("here"), JobFold("r")
        self.hub_judge = JobJudge("r", Faults())
        self.ranks: list[Rank] = []

    def add(self, num_ranks: int, **known) -> list[Rank]:
        added = [Rank(self.folder, rank, **known) for rank in range(num_ranks)]
        self.ranks += added
        return added

    def warm_up(
        self,
        stage: str = "backward",
        num_steps: int = 4,
        runs: Mapping[int, Sequence[str]] | None = None,
    ) -> list[Rank]:
        """Four ranks that have passed a few steps, each with a stage and a collective.

        ``runs``: the command of a rank's process, where it is not to sleep.
        """
        ranks = self.add(WORLD_SIZE)
        for rank, command in (runs or {}).items():
            ranks[rank].dies()
            ranks[rank].runs(*command, stdout=subprocess.PIPE)
        for step in range(1, num_steps + 1):
            for rank in ranks:
                rank.step(step)
                rank.ended(stage)
                rank.took_part("all_reduce@0", step)
        self.look()
        return ranks

    def look(self, seconds_later: float = 0.0, kind: str = "hang") -> Verdict:
        """The verdict of this kind as it is that much later; a hub has to find the same."""
        for _ in range(2):
            self.agent.poll()
            now = time.monotonic_ns() + int(seconds_later * SECOND)
            verdicts = self.watch.observe(self.agent._runs["r"].processes, now)
        (verdict,) = (v for v in verdicts if v.kind == kind and v.role == "trainer")
        by_hub = self._judged_by_hub(now)
        assert list(map(_without_digits, by_hub)) == list(map(_without_digits, verdicts))
        return verdict

    def _judged_by_hub(self, now_ns: int) -> tuple[Verdict, ...]:
        """What the judge finds in the facts as a hub of this one node receives them."""
        fold = self.watch.watched(self.agent._runs["r"])
        document = loaded(dumped(self.reporter.facts(fold)))
        now_seconds = time.time() + (now_ns - time.monotonic_ns()) / SECOND
        self.hub.take("here", document, NodeClock(), now_ns, now_seconds)
        ranks, quiet_seconds = self.hub.ranks(), document.quiet_seconds
        return self.hub_judge.judge_waits(ranks, quiet_seconds, time.monotonic())


def _without_digits(verdict: Verdict) -> Verdict:
    """Facts are rounded before they are sent."""
    summary, *evidence = (NUMBER.sub("#", text) for text in (verdict.summary, *verdict.evidence))
    suspicion = verdict.suspicion and replace(
        verdict.suspicion, since_seconds=0.0, limit_seconds=0.0
    )
    return replace(
        verdict,
        summary=summary,
        evidence=tuple(evidence),
        since_seconds=None,
        suspicion=suspicion,
    )


@contextmanager
def staged(folder: Path) -> Iterator[Scene]:
    """A scene; no process of it lives afterwards."""
    scene = Scene(folder)
    yield scene
    for rank in scene.ranks:
        rank.dies()


def hold_in(ranks: list[Rank], operation: str, sequence: int) -> None:
    for rank in ranks:
        rank.waits(operation, sequence)

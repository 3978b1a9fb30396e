"""Ranks that have started and written nothing yet are on the page, until they have a guest."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator

import pytest

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.attach.processes import ProcessTable
from dfx_agent.base.errors import BlindError
from dfx_agent.commands.run.starting import StartingRanks
from dfx_agent.node.passive import OutsideProcess
from dfx_agent.snapshot import RunRow

RANK = (
    "import dfx_agent.shim as dfx, time; dfx.init(run='r', rank=0); "
    "dfx.set_step(1); print(0, flush=True); time.sleep(600)"
)
# rank 0 trains; rank 2 imports something for long, in a child of its own too; the helper is no rank
LAUNCHER = """
import os, subprocess, sys
SLEEP = "import time; print(0, flush=True); time.sleep(600)"
TRAIN = sys.argv[1]
SPAWN = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEP!r}])"
children = []
for code, rank in ((TRAIN, "0"), (SPAWN, "2"), (SLEEP, "")):
    env = {**os.environ, "RANK": rank, "WORLD_SIZE": "3"}
    child = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE)
    child.stdout.readline()
    children.append(child)
print(*(child.pid for child in children), flush=True)
sys.stdin.read()
for child in children:
    subprocess.run(["pkill", "-KILL", "-P", str(child.pid)])
    child.kill()
"""


@pytest.fixture
def launcher(dfx_dir) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, RANK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.communicate("")


def row(agent: Agent) -> RunRow:
    agent.poll()
    (run,) = agent.snapshot().runs
    return run


def test_a_rank_without_a_guest_is_shown_as_starting_until_the_job_ends(launcher, dfx_dir):
    assert launcher.stdout is not None
    trains, starts, _ = map(int, launcher.stdout.readline().split())
    agent = Agent(Config(directory=str(dfx_dir)))
    starting = StartingRanks(agent, "r", launcher.pid)
    row(agent)
    starting.poll()
    run = row(agent)
    is_starting = {
        (rank.pid, rank.rank): rank.outside is not None and rank.outside.is_starting
        for rank in run.ranks
    }
    assert is_starting == {(trains, "0"): False, (starts, "2"): True}
    (result,) = (v for v in run.verdicts if v.role == "")
    assert (result.kind, result.state) == ("hang", "insufficient evidence")
    assert result.summary.startswith("Rank 2 has been starting for ")
    assert result.action == f"Run `py-spy dump --pid {starts}` to see what it imports or waits for."
    starting.start()
    starting.stop()
    assert [rank.pid for rank in row(agent).ranks] == [trains]
    agent.stop()


def test_few_polls_read_the_process_table_while_nothing_changes(dfx_dir):
    agent = Agent(Config(directory=str(dfx_dir)))
    starting = StartingRanks(agent, "r", os.getpid())
    polls = [starting._is_due() for _ in range(16)]
    assert [n for n, is_due in enumerate(polls, 1) if is_due] == [1, 2, 3, 4, 5, 8, 16]
    with subprocess.Popen([sys.executable, "-c", RANK], stdout=subprocess.PIPE) as rank:
        assert rank.stdout is not None
        rank.stdout.readline()
        row(agent)
        assert starting._is_due(), "a rank started"
        rank.kill()
    agent.stop()


def test_what_a_starved_agent_refused_is_shown_later(monkeypatch):
    class Starved:
        refuses = True
        shown: tuple[int, ...] = ()

        def observe_outside(self, run: str, processes: Iterable[OutsideProcess]) -> None:
            if self.refuses:
                raise BlindError("the agent's reading does not end")
            self.shown = tuple(process.pid for process in processes)

    agent = Starved()
    starting = StartingRanks(agent, "r", os.getpid())
    me = ProcessTable()
    me.refresh()
    process = me.get(os.getpid())
    with pytest.raises(BlindError):
        starting._show([process])
    agent.refuses = False
    starting._show([process])
    assert agent.shown == (os.getpid(),)

"""A real job of 2 x 2 ranks on two folders as two hosts, and three agents on it.

One for each half, which tell a hub, and one that sees all four ranks on one host.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from live_processes import Started, demo_environment, patience, started, unused_port

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.facts.document import dumped
from dfx_agent.job.folds import JobFolds
from dfx_agent.snapshot import RunRow, Verdict
from dfx_agent.wire.segment import FLIGHT_SUFFIX, STACKS_SUFFIX, SUFFIX

JOB = str(Path(__file__).parent / "jobs" / "two_hosts.py")
NODES = ("node-a", "node-b")
_OF_RANKS = frozenset({SUFFIX, STACKS_SUFFIX, FLIGHT_SUFFIX})


class TwoNodes:
    """``look`` reads, tells and judges once."""

    def __init__(self, folders: dict[str, Path], whole: Path, ranks: list[Started]) -> None:
        self.ranks = ranks
        self.hub = JobFolds()
        self.agents = {node: Agent(Config(str(path)), reap=False) for node, path in folders.items()}
        self._folders, self._whole_folder = folders, whole
        self._whole = Agent(Config(str(whole)), reap=False)
        for node, agent in self.agents.items():
            agent.collect_facts(node)

    def look(self, *, is_full: bool = False) -> bool:
        """False where the hub asks to be told all again."""
        self._mirror()
        self._whole.poll()
        taken = []
        for node, agent in self.agents.items():
            agent.poll()
            reported = agent.facts(is_full=is_full)
            taken += [self.hub.receive(dumped(facts), node) for facts in reported]
        return all(taken)

    def restart_hub(self) -> None:
        """It has kept nothing."""
        self.hub = JobFolds()

    def seen_by_one(self) -> RunRow | None:
        """None before there is a rank; so of the hub."""
        return next(iter(self._whole.snapshot().runs), None)

    def seen_by_hub(self) -> RunRow | None:
        return next(iter(self.hub.snapshot().runs), None)

    def num_steps(self) -> int:
        """The newest that both have closed."""
        runs = self.seen_by_one(), self.seen_by_hub()
        return min(max((row.step for row in run.steps), default=0) if run else 0 for run in runs)

    def until(
        self, is_over: Callable[[dict[str, Verdict], dict[str, Verdict]], bool], seconds: float
    ) -> tuple[dict[str, Verdict], dict[str, Verdict]]:
        """What one agent concludes of all, and the hub of both halves; by kind."""
        begin = time.monotonic()
        while True:
            self.look()
            known = [
                {} if run is None else {verdict.kind: verdict for verdict in run.verdicts}
                for run in (self.seen_by_one(), self.seen_by_hub())
            ]
            if is_over(*known):
                return known[0], known[1]
            assert time.monotonic() - begin < seconds * patience(), known
            time.sleep(0.25)

    def _mirror(self) -> None:
        """The folder of all has what the halves have, file by file."""
        for folder in self._folders.values():
            for path in folder.iterdir():
                link = self._whole_folder / path.name
                if path.suffix not in _OF_RANKS or _is_same(path, link):
                    continue
                with contextlib.suppress(OSError):  # it was replaced meanwhile
                    link.unlink(missing_ok=True)
                    os.link(path, link)


def _is_same(path: Path, link: Path) -> bool:
    return link.exists() and link.samefile(path)


@contextmanager
def two_nodes(tmp_path: Path, fault: str, step: int) -> Iterator[TwoNodes]:
    """Running, with rank 3 on node-b to blame."""
    folders = {node: tmp_path / node for node in NODES}
    whole = tmp_path / "whole"
    for folder in (*folders.values(), whole):
        folder.mkdir(mode=0o700)
    port = str(unused_port())
    with ExitStack() as stack:
        ranks = []
        for rank in range(4):
            node = NODES[rank // 2]
            known = {
                "RANK": rank, "LOCAL_RANK": rank % 2, "WORLD_SIZE": 4, "MASTER_PORT": port,
                "MASTER_ADDR": "127.0.0.1", "DFX_RUN": "job", "DFX_NODE": node,
                "DFX_DIR": folders[node],
            }  # fmt: skip
            env = demo_environment(**{name: str(value) for name, value in known.items()})
            command = [sys.executable, JOB, fault, str(step)]
            ranks.append(stack.enter_context(started(command, tmp_path, env)))
        yield TwoNodes(folders, whole, ranks)

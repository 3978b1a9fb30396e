"""A real ``dfx-agent hub`` and agents that join it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from live_processes import DFX_AGENT, LiveAgent, job_environment, serving, started, unused_port


class LiveHub(LiveAgent):
    """The same questions, and what a hub alone answers."""

    def nodes(self) -> dict[str, dict[str, Any]]:
        return {row["node"]: row for row in self.snapshot()["agent"]["nodes"]}

    def num_taken(self) -> int:
        return sum(row["num_taken"] for row in self.nodes().values())


@contextmanager
def hub(folder: Path, port: int, *words: str, **settings: str) -> Iterator[LiveHub]:
    command = [*DFX_AGENT, "hub", "--listen", f"127.0.0.1:{port}", *words]
    with started(command, folder, job_environment(**settings)) as process:
        found = LiveHub(process, port)
        found.wait_until_ready()
        yield found


@contextmanager
def joined(folder: Path, segments: Path, hub_port: int, **settings: str) -> Iterator[LiveAgent]:
    """An agent with a folder of its own that joins the hub on ``hub_port``."""
    known = {"DFX_DIR": str(segments), "DFX_HUB": f"http://127.0.0.1:{hub_port}"}
    with serving(folder, unused_port(), env=job_environment(**known | settings)) as agent:
        yield agent


def join_state(agent: LiveAgent) -> str:
    return agent.snapshot()["agent"]["hub"]["state"]

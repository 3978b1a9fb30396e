"""Whether the agent still sees, as series: its faults, its blindness, the age of what it says."""

from __future__ import annotations

import time
from typing import get_args

from dfx_agent.catalogue import agent as about_agent
from dfx_agent.exporters.prometheus.ranks import Page
from dfx_agent.snapshot import AgentRow, FaultPart, RunRow


def add_faults(page: Page, agent: AgentRow) -> None:
    """Of the agent as a whole. Each part has a counter from the beginning, so that it can grow."""
    page.add(about_agent.AGENT_BLIND, (), agent.blind is not None)
    if agent.read_seconds is not None:
        page.add(about_agent.READ_AGE_SECONDS, (), _age_seconds(agent.read_seconds))
    for part in get_args(FaultPart):
        page.add(about_agent.AGENT_FAULTS, (part,), agent.num_faults.get(part, 0))


def add_blindness(page: Page, run: RunRow, node: str) -> None:
    """Of one run."""
    page.add(about_agent.RUN_BLIND, (run.run, node), run.blind is not None)
    if run.judged_seconds:
        oldest = min(run.judged_seconds.values())
        page.add(about_agent.JUDGED_AGE_SECONDS, (run.run, node), _age_seconds(oldest))


def _age_seconds(seconds: float) -> float:
    """0 where the clock of the machine was set back meanwhile."""
    return max(0.0, time.time() - seconds)

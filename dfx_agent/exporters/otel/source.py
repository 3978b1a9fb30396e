"""What a push asks of the agent."""

from __future__ import annotations

from typing import Protocol

from dfx_agent.snapshot import Snapshot, StepRow, TimelineRow


class TimelineSource(Protocol):
    """What a push of steps asks of the agent. KeyError on an unknown run."""

    def snapshot(self) -> Snapshot:
        """The newest snapshot."""

    def closed_steps(self, run: str, after_step: int | None) -> tuple[StepRow, ...]:
        """Closed steps of every role that are kept, those after ``after_step`` if it is given."""

    def timeline(self, run: str, num_steps: int) -> tuple[TimelineRow, ...]:
        """Each rank's newest steps as pieces, the running one included."""

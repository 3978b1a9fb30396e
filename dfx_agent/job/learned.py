"""What outlives an agent of the judge of signals: baselines, and how far it was."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from dfx_agent.judge.divergence.health import RunHealth, SavedHealth
from dfx_agent.judge.divergence.saved_state import FORMAT_2

Signals: TypeAlias = RunHealth
Learned: TypeAlias = Annotated[SavedHealth, FORMAT_2]

"""State of the signal judge that the next agent restores: baselines and progress."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from dfx_agent.judge.divergence.health import RunHealth, SavedHealth
from dfx_agent.judge.divergence.saved_state import FORMAT_2

Signals: TypeAlias = RunHealth
Learned: TypeAlias = Annotated[SavedHealth, FORMAT_2]

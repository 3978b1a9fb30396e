"""What LightRFT prints of a step beside its statistics: times of three parts, and device memory.

Source: opendilab/LightRFT 49e62cb. None of these lines says a step; the one about training is the
last of each. The keys are LightRFT's own words: ``catalogue/native/lightrft.yaml``.
"""

from __future__ import annotations

import re

from dfx_agent.ingest.run import Record
from dfx_agent.ingest.values import numbers

_NUMBER = r"(\d+\.?\d*(?:e[-+]?\d+)?)"
_TIMES = re.compile(
    r"(PPO Train TIMECOST|Rollout engine generation time \(global max\)"
    rf"|Finished \w+ wakeup, TIMECOST):? {_NUMBER}"
)
_MEMORY = re.compile(
    rf"MEMORY STATUS: (.{{1,100}}?) ?, DRIVER_USED={_NUMBER} GB, ALLOCATED={_NUMBER} GB"
)
_LAST = "PPO Train TIMECOST"
_WORDS = ("TIMECOST", "generation time (global max)", "MEMORY STATUS: ")


class LightRFTLines:
    """Collects what the lines of one step say; of what is told again the last counts."""

    def __init__(self) -> None:
        self._found: Record = {}

    def takes(self, line: str) -> bool:
        """Whether this line is one of them."""
        if not any(word in line for word in _WORDS):
            return False
        if time := _TIMES.search(line):
            self._found.update(numbers([(time[1], time[2])]))
        elif memory := _MEMORY.search(line):
            place = f"MEMORY STATUS: {memory[1].strip()}"
            used = [(f"{place}, DRIVER_USED", memory[2]), (f"{place}, ALLOCATED", memory[3])]
            self._found.update(numbers(used))
        else:
            return False
        return True

    def step(self) -> Record | None:
        """All of a step, when its last line has come."""
        if _LAST not in self._found:
            return None
        found, self._found = self._found, {}
        return found

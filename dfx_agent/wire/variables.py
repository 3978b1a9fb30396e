"""The environment variables that the guest reads in a job, with meaning, default and type.

A test checks the guest's part of docs/reference/settings.md against this file. Values are read on
use, not on import: Ray and verl change the environment of a process after its start. The classes
are not generic because ``typing`` holds type parameters forever, even those of a detached guest.
"""

from __future__ import annotations

import os

from dfx_agent.wire.layout import DEFAULT_NUM_RECORDS, MAX_NUM_RECORDS, MIN_NUM_RECORDS

DEFAULT_MAX_OVERHEAD = 0.005


class Variable:
    """One variable. An empty value counts as absent. ``meaning`` is its line in settings.md."""

    def __init__(self, name: str, meaning: str) -> None:
        self.name = name
        self.meaning = meaning

    def text(self) -> str:
        """The current value in the environment; "" if absent."""
        return os.environ.get(self.name, "")


class TextVariable(Variable):
    """Any text."""

    def value(self) -> str:
        return self.text()


class FlagVariable(Variable):
    """True only for the text "1"."""

    def value(self) -> bool:
        return self.text() == "1"


class NamesVariable(Variable):
    """Names separated by commas; empty by default."""

    def value(self) -> frozenset[str]:
        return frozenset(self.text().replace(" ", "").split(",")) - {""}


class RatioVariable(Variable):
    """A share of a total, 0.005 by default; None if it is not between 0 and 1, such as "0"."""

    def value(self) -> float | None:
        return ratio_below_one(self.text() or str(DEFAULT_MAX_OVERHEAD))


class RingSizeVariable(Variable):
    """Number of records, a power of two. Other values raise a ValueError with the valid range."""

    def value(self) -> int:
        text = self.text() or str(DEFAULT_NUM_RECORDS)
        number = int(text) if text.isascii() and text.isdecimal() else 0
        if number & (number - 1) or not MIN_NUM_RECORDS <= number <= MAX_NUM_RECORDS:
            limits = f"{MIN_NUM_RECORDS} to {MAX_NUM_RECORDS}"
            raise ValueError(f"{self.name}={text}: use a power of two, {limits}")
        return number


def ratio_below_one(text: str) -> float | None:
    """Parse "0.005" or "0.5%" as 0.005; None for other text and for values outside (0, 1)."""
    try:
        ratio = float(text.rstrip("% ")) / (100 if "%" in text else 1)
    except ValueError:
        return None
    return ratio if 0 < ratio < 1 else None


AGENT = TextVariable(
    "DFX_AGENT",
    "`1` starts the guest where dfx-agent is installed, without a launcher; "
    "`0` disables it in verl",
)
DIR = TextVariable(
    "DFX_DIR", "[folder of the segments](files.md) (`/dev/shm/dfx-<uid>`), the agent's too"
)
RUN = TextVariable("DFX_RUN", "name of the run, if the launcher does not set one")
ROLE = TextVariable("DFX_ROLE", "role of the process, such as `trainer` or `rollout`")
NODE = TextVariable("DFX_NODE", "name of this machine (its host name)")
FRAMEWORK = TextVariable("DFX_FRAMEWORK", "framework for the mapping of metric names")
RING_RECORDS = RingSizeVariable(
    "DFX_RING_RECORDS",
    f"size of the ring ({DEFAULT_NUM_RECORDS}), a power of two; 64 bytes each",
)
DISABLE_HOOKS = NamesVariable(
    "DFX_DISABLE_HOOKS", "hooks to disable: `collectives,forward`, `verl.timers`, or `all`"
)
MAX_OVERHEAD = RatioVariable(
    "DFX_MAX_OVERHEAD",
    "share of the time that the guest may cost, such as `1%`, above which it records less; `0` "
    "records everything at any cost (0.5 % for FLOPs, values and batches, no limit for stages and "
    "collectives; `--max-overhead` of `run` and `attach` takes precedence)",
)
DEVICE_TIME = FlagVariable(
    "DFX_DEVICE_TIME",
    "`1` times collectives on a device in every 16th step (off: not run on a GPU)",
)
LEDGER_EVERY_STEP = FlagVariable(
    "DFX_LEDGER_EVERY_STEP",
    "`1` checks the batches of every step (off: if steps are shorter than 0.25 s, only every 2nd, "
    "4th, 8th, ... is checked)",
)
MEMORY_SNAPSHOT = FlagVariable(
    "DFX_MEMORY_SNAPSHOT",
    "`1` stores a [snapshot of the allocator](../concepts/memory.md#a-snapshot-of-the-allocator) "
    "when the memory verdict is about a device (off: the job is blocked while it is made)",
)

ALL: tuple[Variable, ...] = (
    AGENT, DIR, RUN, ROLE, NODE, FRAMEWORK, RING_RECORDS, DISABLE_HOOKS, MAX_OVERHEAD, DEVICE_TIME,
    LEDGER_EVERY_STEP, MEMORY_SNAPSHOT,
)  # fmt: skip

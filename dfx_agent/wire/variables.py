"""The variables that the guest reads in a job: each with its meaning, default and form.

The guest's part of docs/reference/settings.md is checked against this file. Read when asked, not
when loaded: Ray and verl change the environment of a process after its start. No generic classes:
``typing`` keeps their parameters for ever, those of a guest too that has left its job.
"""

from __future__ import annotations

import os

from dfx_agent.wire.layout import DEFAULT_NUM_RECORDS, MAX_NUM_RECORDS, MIN_NUM_RECORDS

DEFAULT_MAX_OVERHEAD = 0.005


class Variable:
    """One variable, absent or empty alike; ``meaning`` is its line in the page of settings."""

    def __init__(self, name: str, meaning: str) -> None:
        self.name = name
        self.meaning = meaning

    def text(self) -> str:
        """As it is now in the environment; "" where it is absent."""
        return os.environ.get(self.name, "")


class Text(Variable):
    """Any text."""

    def value(self) -> str:
        return self.text()


class Flag(Variable):
    """Off by default, and for any text but "1"."""

    def value(self) -> bool:
        return self.text() == "1"


class Names(Variable):
    """Names between commas; none by default."""

    def value(self) -> frozenset[str]:
        return frozenset(self.text().replace(" ", "").split(",")) - {""}


class Ratio(Variable):
    """0.005 by default; None for what is no share of a whole, such as "0"."""

    def value(self) -> float | None:
        return ratio_below_one(self.text() or str(DEFAULT_MAX_OVERHEAD))


class RingSize(Variable):
    """Records, a power of two; ValueError says which are possible."""

    def value(self) -> int:
        text = self.text() or str(DEFAULT_NUM_RECORDS)
        number = int(text) if text.isascii() and text.isdecimal() else 0
        if number & (number - 1) or not MIN_NUM_RECORDS <= number <= MAX_NUM_RECORDS:
            limits = f"{MIN_NUM_RECORDS} to {MAX_NUM_RECORDS}"
            raise ValueError(f"{self.name}={text}: use a power of two, {limits}")
        return number


def ratio_below_one(text: str) -> float | None:
    """0.005 from "0.005" or "0.5%"; None for 0 and less, for 1 and more, and for what is none."""
    try:
        ratio = float(text.rstrip("% ")) / (100 if "%" in text else 1)
    except ValueError:
        return None
    return ratio if 0 < ratio < 1 else None


AGENT = Text(
    "DFX_AGENT",
    "`1` starts the guest where dfx-agent is installed, without a launcher; "
    "`0` disables it in verl",
)
DIR = Text("DFX_DIR", "[folder of the segments](files.md) (`/dev/shm/dfx-<uid>`), the agent's too")
RUN = Text("DFX_RUN", "name of the run, if the launcher does not set one")
ROLE = Text("DFX_ROLE", "role of the process, such as `trainer` or `rollout`")
NODE = Text("DFX_NODE", "name of this machine (its host name)")
FRAMEWORK = Text("DFX_FRAMEWORK", "framework for the mapping of metric names")
RING_RECORDS = RingSize(
    "DFX_RING_RECORDS",
    f"size of the ring ({DEFAULT_NUM_RECORDS}), a power of two; 64 bytes each",
)
DISABLE_HOOKS = Names(
    "DFX_DISABLE_HOOKS", "hooks to disable: `collectives,forward`, `verl.timers`, or `all`"
)
MAX_OVERHEAD = Ratio(
    "DFX_MAX_OVERHEAD",
    "share of the time that the guest may cost, such as `1%`, above which it records less; `0` "
    "records everything at any cost (0.5 % for FLOPs, values and batches, no limit for stages and "
    "collectives; `--max-overhead` of `run` and `attach` takes precedence)",
)
DEVICE_TIME = Flag(
    "DFX_DEVICE_TIME",
    "`1` times collectives on a device in every 16th step (off: not run on a GPU)",
)
LEDGER_EVERY_STEP = Flag(
    "DFX_LEDGER_EVERY_STEP",
    "`1` checks the batches of every step (off: if steps are shorter than 0.25 s, only every 2nd, "
    "4th, 8th, ... is checked)",
)
MEMORY_SNAPSHOT = Flag(
    "DFX_MEMORY_SNAPSHOT",
    "`1` stores a [snapshot of the allocator](../concepts/memory.md#a-snapshot-of-the-allocator) "
    "when the memory verdict is about a device (off: the job is blocked while it is made)",
)

ALL: tuple[Variable, ...] = (
    AGENT, DIR, RUN, ROLE, NODE, FRAMEWORK, RING_RECORDS, DISABLE_HOOKS, MAX_OVERHEAD, DEVICE_TIME,
    LEDGER_EVERY_STEP, MEMORY_SNAPSHOT,
)  # fmt: skip

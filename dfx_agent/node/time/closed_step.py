"""A finished step of one process, with all that was measured in it.

The thread that begins the steps is the training thread. On a host that many processes share, its
CPU time varies by a few percent while the wall time of the same work varies by tens of percent
(docs/decisions/straggler.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dfx_agent.catalogue.per_rank import STAGE_FAILURES_COUNTER
from dfx_agent.facts.steps import GroupTime, SchedTimes
from dfx_agent.node.time.account import StepInterval
from dfx_agent.node.time.work import ClosedWork
from dfx_agent.wire.records import FAILED, FORWARD_SAMPLES, FORWARD_TOKENS, NO_STEP, STAGE


@dataclass
class ClosedStep:
    """A step that one process has finished."""

    window: StepInterval
    # tokens of the step by kind, for example "prompt"
    tokens: dict[str, float] = field(default_factory=dict)
    num_forward_tokens: float | None = None
    # CPU time of the training thread, measured by the guest
    busy_seconds: float | None = None
    num_samples: float | None = None  # rows of forward passes for training
    # CPU time and time spent runnable without a CPU, as the kernel counts them
    processor: SchedTimes | None = None
    groups: Mapping[str, GroupTime] = field(default_factory=dict)
    work: ClosedWork | None = None


_KEEP_STEPS = 16

Tokens = dict[str, float]


class StepCounts:
    """Counts of the steps that have not been returned yet, by step number."""

    def __init__(self) -> None:
        self._tokens: dict[int, Tokens] = {}
        self._samples: dict[int, float] = {}
        self._busy: dict[int, float] = {}
        self._step, self._busy_before = NO_STEP, 0.0
        self.thread = 0  # the thread that began the latest step, 0 if unknown

    def add_tokens(self, step: int, kind: str, count: float) -> None:
        tokens = self._tokens.setdefault(step, {})
        tokens[kind] = tokens.get(kind, 0.0) + count

    def add_count(self, step: int, name: str, count: float) -> None:
        """A counter of the guest; ignored unless it counts rows of forward passes for training."""
        if name == FORWARD_SAMPLES:
            self._samples[step] = self._samples.get(step, 0.0) + count

    def begin_step(self, step: int, thread: int, busy_seconds: float) -> None:
        """``busy_seconds``: CPU time of the thread so far, 0.0 if unknown."""
        if thread == self.thread and busy_seconds > self._busy_before > 0.0:
            self._busy[self._step] = busy_seconds - self._busy_before
        self._step, self.thread, self._busy_before = step, thread, busy_seconds

    def pop(self, step: int) -> tuple[Tokens, float | None, float | None, float | None]:
        """(tokens by kind, tokens of forward passes for training, CPU seconds, samples).

        None if unknown.
        """
        tokens, busy_seconds = self._tokens.pop(step, {}), self._busy.pop(step, None)
        num_samples = self._samples.pop(step, None)
        for by_step in (self._tokens, self._samples, self._busy):
            for old_step in sorted(by_step)[:-_KEEP_STEPS]:
                del by_step[old_step]
        return reported_tokens(tokens), tokens.get(FORWARD_TOKENS), busy_seconds, num_samples


def count_failure(counters: dict[str, float], kind: int, name: str) -> None:
    """Count a stage that an exception ended; ``kind`` is that of the record, with its flags."""
    if kind == STAGE | FAILED:
        counter = f"{STAGE_FAILURES_COUNTER}{name}"
        counters[counter] = counters.get(counter, 0.0) + 1.0


def reported_tokens(tokens: Tokens) -> Tokens:
    """Tokens without those of forward passes, which repeat them; all if there are no others."""
    return {k: n for k, n in tokens.items() if k != FORWARD_TOKENS} or dict(tokens)

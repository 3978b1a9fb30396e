"""What one process counts within a step besides time: tokens, samples, its thread's CPU time.

The thread that begins the steps is the one that trains. Its processor time is its work without the
moments in which the host gave the processor to somebody else: where many processes share a host it
varies by some percent where the wall time of the same work varies by tens
(docs/decisions/straggler.md).
"""

from __future__ import annotations

from dfx_agent.wire.records import FORWARD_SAMPLES, FORWARD_TOKENS, NO_STEP

_KEEP_STEPS = 16

Tokens = dict[str, float]


class StepCounts:
    """Of the steps that are not closed yet, by number; ``thread`` began the newest, 0 unknown."""

    def __init__(self) -> None:
        self._tokens: dict[int, Tokens] = {}
        self._samples: dict[int, float] = {}
        self._busy: dict[int, float] = {}
        self._step, self.thread, self._busy_before = NO_STEP, 0, 0.0

    def add_tokens(self, step: int, kind: str, count: float) -> None:
        tokens = self._tokens.setdefault(step, {})
        tokens[kind] = tokens.get(kind, 0.0) + count

    def add_count(self, step: int, name: str, count: float) -> None:
        """A counter of the guest; ignored unless it counts rows of forward passes for training."""
        if name == FORWARD_SAMPLES:
            self._samples[step] = self._samples.get(step, 0.0) + count

    def begin_step(self, step: int, thread: int, busy_seconds: float) -> None:
        """``busy_seconds`` of processor time the thread has had so far, 0.0 unknown."""
        if thread == self.thread and busy_seconds > self._busy_before > 0.0:
            self._busy[self._step] = busy_seconds - self._busy_before
        self._step, self.thread, self._busy_before = step, thread, busy_seconds

    def take(self, step: int) -> tuple[Tokens, float | None, float | None, float | None]:
        """Tokens by kind; tokens of forward passes for training, CPU seconds, and samples.

        None where unknown.
        """
        tokens, busy_seconds = self._tokens.pop(step, {}), self._busy.pop(step, None)
        num_samples = self._samples.pop(step, None)
        for kept in (self._tokens, self._samples, self._busy):
            for old in sorted(kept)[:-_KEEP_STEPS]:
                del kept[old]
        return as_told(tokens), tokens.get(FORWARD_TOKENS), busy_seconds, num_samples


def as_told(tokens: Tokens) -> Tokens:
    """Forward passes take in the same tokens again: theirs count where nobody tells any."""
    return {kind: n for kind, n in tokens.items() if kind != FORWARD_TOKENS} or dict(tokens)

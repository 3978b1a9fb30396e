"""How late a process' event loop wakes, and who held it."""

from __future__ import annotations

from dataclasses import dataclass

# what the guest says where no code of the process held a loop
NO_CODE = ("(the host:", "(nobody:")
# ... and where it has named too many to name one more
UNNAMED = "(other holders)"


@dataclass(frozen=True, slots=True)
class LagStats:
    """Seconds by which a callback that is wanted now comes later, at any moment of a time.

    ``num_samples`` are answers of the loop. Moments in which it could not answer count too: an
    answer that took 2 s stands for one late by 2 s, one by 1.9 s and so on (the correction for
    coordinated omission of HdrHistogram).
    """

    num_samples: int
    mean_seconds: float
    p50_seconds: float
    p90_seconds: float
    p99_seconds: float
    max_seconds: float


@dataclass(frozen=True, slots=True)
class LoopHolder:
    """Code that kept a loop from answering: ``task > coroutine > function > innermost``."""

    name: str
    seconds: float
    num_times: int
    longest_seconds: float

    @property
    def is_code(self) -> bool:
        """Whether it is code of the process: not the host, nor nobody at all."""
        return not self.name.startswith(NO_CODE)

    @property
    def is_named_code(self) -> bool:
        """Whether the name tells which code it is."""
        return self.is_code and self.name != UNNAMED


@dataclass(frozen=True, slots=True)
class LoopPhase:
    """A stage within one step, without the stages inside it; ``name`` is "" outside all.

    For ``late_seconds`` of it the loop was late by 0.1 s or more, None where that is not known.
    """

    name: str
    seconds: float
    late_seconds: float | None
    holders: tuple[LoopHolder, ...]


@dataclass(frozen=True, slots=True)
class LoopStep:
    """The newest step that is over: its phases, longest first, at most 64."""

    step: int
    seconds: float
    phases: tuple[LoopPhase, ...]
    num_omitted_phases: int


@dataclass(frozen=True, slots=True)
class EventLoopRow:
    """Of one process. ``window`` is the newest minute, ``step`` the newest step that is over.

    ``late_seconds`` of that minute the loop was late by 0.1 s or more; ``holders``, most first, for
    that long. ``late_seconds_total`` is the same since it was first seen. ``window_seconds`` is
    shorter than a minute where the loop was not seen so long.
    ``last_step`` is None where the process has passed no step. ``unanswered_seconds``: the loop is
    held now, for so long at least, by ``unanswered_holder``; 0 where it answers.
    """

    window_seconds: float
    window: LagStats
    step: LagStats | None
    late_seconds: float
    holders: tuple[LoopHolder, ...]
    late_seconds_total: float = 0.0
    last_step: LoopStep | None = None
    unanswered_seconds: float = 0.0
    unanswered_holder: str = ""

    @property
    def code_ratio(self) -> float | None:
        """Share of ``holders`` that is code; None where nobody held it."""
        total = sum(holder.seconds for holder in self.holders)
        of_code = sum(holder.seconds for holder in self.holders if holder.is_code)
        return of_code / total if total else None

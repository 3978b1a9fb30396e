"""Contract 2: lag of a process's event loop, and the code that blocked it."""

from __future__ import annotations

from dataclasses import dataclass

# beginnings of names that the guest uses if no code of the process blocked the loop
NO_CODE = ("(the host:", "(nobody:")
# name that the guest uses if its table of names is full
UNNAMED = "(other holders)"


@dataclass(frozen=True, slots=True)
class LagStats:
    """Seconds by which a callback that is due at a random moment is late.

    Moments in which the loop could not answer count too: an answer after 2 s counts as 2 s late,
    1.9 s late and so on (HdrHistogram's correction for coordinated omission).
    """

    num_samples: int
    """Answers of the loop."""
    mean_seconds: float
    p50_seconds: float
    p90_seconds: float
    p99_seconds: float
    max_seconds: float


@dataclass(frozen=True, slots=True)
class LoopHolder:
    """Code that blocked a loop: ``task > coroutine > function > innermost``."""

    name: str
    seconds: float
    num_times: int
    longest_seconds: float

    @property
    def is_code(self) -> bool:
        """Whether it is code of the process, not the host or an unknown cause."""
        return not self.name.startswith(NO_CODE)

    @property
    def is_named_code(self) -> bool:
        """Whether the name identifies the code."""
        return self.is_code and self.name != UNNAMED


@dataclass(frozen=True, slots=True)
class LoopPhase:
    """A stage within one step, without the stages inside it."""

    name: str
    """"" for the time outside all stages."""
    seconds: float
    late_seconds: float | None
    """Time of the phase in which the loop was late by 0.1 s or more; None if unknown."""
    holders: tuple[LoopHolder, ...]


@dataclass(frozen=True, slots=True)
class LoopStep:
    """The latest finished step: its phases, longest first, at most 64."""

    step: int
    seconds: float
    phases: tuple[LoopPhase, ...]
    num_omitted_phases: int


@dataclass(frozen=True, slots=True)
class EventLoopRow:
    """Event loop of one process over the last minute."""

    window_seconds: float
    """Less than a minute if the loop has been observed for a shorter time."""
    window: LagStats
    step: LagStats | None
    """Of the latest finished step."""
    late_seconds: float
    """Time of the last minute in which the loop was late by 0.1 s or more."""
    holders: tuple[LoopHolder, ...]
    """Code that blocked the loop in that time, longest first."""
    late_seconds_total: float = 0.0
    """Like ``late_seconds``, since the loop was first seen."""
    last_step: LoopStep | None = None
    """None if the process has finished no step."""
    unanswered_seconds: float = 0.0
    """How long the loop has been blocked now; 0 if it answers."""
    unanswered_holder: str = ""
    """Code that blocks it now."""

    @property
    def code_ratio(self) -> float | None:
        """Share of ``holders`` that is code; None if there are none."""
        total = sum(holder.seconds for holder in self.holders)
        of_code = sum(holder.seconds for holder in self.holders if holder.is_code)
        return of_code / total if total else None

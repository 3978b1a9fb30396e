"""Contract 2: what the models of one rank multiplied in its newest closed step, and how fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PeakSource = Literal["table", "override", "unknown"]


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model that a rank runs. ``reason``: why its FLOPs are not known, "" where they are.

    ``uncounted``: kinds of its modules that are not in the FLOPs.
    """

    name: str
    num_parameters: int
    num_trained: int
    num_attentions: int
    reason: str = ""
    uncounted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StageWork:
    """Model FLOPs of one outermost stage ("" outside all) in one step, and how long it was open.

    ``mfu_ratio`` is None where the peak or the time is not known.
    """

    stage: str
    forward_flops: float
    backward_flops: float
    seconds: float | None
    mfu_ratio: float | None


@dataclass(frozen=True, slots=True)
class WorkRow:
    """Of one step, None where nothing was counted. ``reason``: why there is no MFU, "" for none.

    ``device``: name of what computes it, "" unknown. ``peak_flops_per_second``: of the numbers that
    most FLOPs are of.
    """

    step: int | None
    seconds: float
    device: str
    stages: tuple[StageWork, ...]
    mfu_ratio: float | None
    peak_source: PeakSource
    peak_flops_per_second: float | None
    reason: str
    models: tuple[ModelRow, ...]

    @property
    def flops(self) -> float:
        return sum(stage.forward_flops + stage.backward_flops for stage in self.stages)

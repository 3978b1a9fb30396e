"""One step's metrics, reduced over samples and ranks as verl does, under verl's names."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor

SPREAD = ("mean", "max", "min")


class StepMetrics:
    """Collects on each rank; ``reduced`` merges over ranks.

    All ranks must name the same metrics in the same order. What travels is count, sum, maximum and
    minimum, never a mean, so a rank with few samples does not weigh as one with many.
    """

    def __init__(self) -> None:
        self._moments: dict[str, Tensor] = {}
        self._names: dict[str, dict[str, str]] = {}

    def spread(self, name: str, values: Tensor) -> None:
        """``name/mean``, ``name/max`` and ``name/min`` over all elements of ``values``."""
        self._add(name, {f"{name}/{reduction}": reduction for reduction in SPREAD}, values)

    def mean(self, name: str, values: Tensor | float) -> None:
        self._add(name, {name: "mean"}, values)

    def largest(self, name: str, values: Tensor | float) -> None:
        self._add(name, {name: "max"}, values)

    def total(self, name: str, values: Tensor | float) -> None:
        self._add(name, {name: "sum"}, values)

    def reduced(self) -> dict[str, float]:
        """Values over all ranks, NaN where there was no element; a collective call."""
        mine = torch.stack(list(self._moments.values()))
        ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(ranks, mine)
        merged = _merge(torch.stack(ranks))
        return {
            name: _read(moments, reduction)
            for moments, names in zip(merged, self._names.values(), strict=True)
            for name, reduction in names.items()
        }

    def _add(self, key: str, names: dict[str, str], values: Tensor | float) -> None:
        moments = _moments_of(torch.as_tensor(values).detach().double().flatten())
        if key in self._moments:
            moments = _merge(torch.stack([self._moments[key], moments]))
        self._moments[key] = moments
        self._names[key] = names


def _moments_of(values: Tensor) -> Tensor:
    """Count, sum, maximum and minimum (4,) of ``values`` (N,); N may be 0."""
    if len(values) == 0:
        return torch.tensor([0.0, 0.0, -math.inf, math.inf], dtype=torch.float64)
    count = torch.tensor(float(len(values)), dtype=torch.float64)
    return torch.stack([count, values.sum(), values.amax(), values.amin()])


def _merge(moments: Tensor) -> Tensor:
    """Moments (N, ..., 4) of N parts to those of the whole (..., 4); NaN stays NaN."""
    added, largest, smallest = moments[..., :2].sum(0), moments[..., 2].amax(0), moments[..., 3]
    return torch.cat([added, torch.stack([largest, smallest.amin(0)], dim=-1)], dim=-1)


def _read(moments: Tensor, reduction: str) -> float:
    count, added, largest, smallest = (float(moment) for moment in moments)
    if count == 0:
        return math.nan
    return {"mean": added / count, "sum": added, "max": largest, "min": smallest}[reduction]


def console_line(step: int, metrics: dict[str, float]) -> str:
    """The line that verl's console logger prints for one step."""
    pairs = [f"{name}:{value:.6g}" for name, value in metrics.items()]
    return " - ".join([f"step:{step}", *pairs])


def short_line(step: int, num_steps: int, metrics: dict[str, float], timers: dict[str, str]) -> str:
    """One step for people; ``timers``: stage -> its metric, in seconds."""
    seconds = {stage: metrics[key] for stage, key in timers.items() if key in metrics}
    slowest = max(seconds, key=lambda stage: seconds[stage])
    step_seconds = metrics["timing_s/step"]
    tokens_per_second = metrics["perf/total_num_tokens"] / step_seconds
    return (
        f"step {step:>{len(str(num_steps))}}/{num_steps}  "
        f"reward {metrics['critic/rewards/mean']:5.3f}  {tokens_per_second:>7,.0f} tokens/s  "
        f"{step_seconds:.2f} s, longest {slowest} {seconds[slowest]:.2f} s"
    )

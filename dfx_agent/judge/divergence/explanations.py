"""Whether reward and loss explain a signal that is far off its baseline.

Learning itself moves entropy, gradient norm and reference KL, also in a healthy run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from dfx_agent.judge.divergence.around_onset import AroundOnset, SavedAroundOnset
from dfx_agent.judge.divergence.collapse import ENTROPY, GRAD_NORM, REFERENCE_KLS, UNBELIEVABLE
from dfx_agent.judge.divergence.reward_trend import RewardTrend

_EMPTY = SavedAroundOnset()


class Explanations:
    """Reward and loss of one run around the onsets of other signals."""

    def __init__(self, reward: RewardTrend) -> None:
        self.values: Mapping[str, float] = {}  # of the latest row
        self.is_paged = False  # whether the alert fires; then an improving reward is no excuse
        self._reward = reward
        of_reference = [f"{name} reward" for name in sorted(REFERENCE_KLS)]
        self._around_by_name = {name: AroundOnset() for name in ("loss", "reward", *of_reference)}

    def explains(self, name: str, is_far: bool) -> bool:  # noqa: FBT001
        """Whether reward and loss explain this signal.

        Must be called for each row of the signal.
        """
        is_reference = name in REFERENCE_KLS
        if name != ENTROPY:
            key = f"{name} reward" if is_reference else "reward"
            reward = self._observe_around(key, "reward", is_far=is_far)
        if name == GRAD_NORM:
            loss = self._observe_around("loss", "loss", is_far=is_far)
        if not is_far:
            return False
        if not self.is_paged and self._reward.is_improving(is_latched=False):
            return True
        if is_reference:
            return reward.is_known and not reward.is_down
        return name == GRAD_NORM and (reward.is_best or (loss.is_known and not loss.is_up))

    def clear(self) -> None:
        for around in self._around_by_name.values():
            around.clear()

    def save(self) -> dict[str, SavedAroundOnset]:
        saved = {name: around.save() for name, around in self._around_by_name.items()}
        return {name: around for name, around in saved.items() if around != _EMPTY}

    def resume(self, saved: Mapping[str, SavedAroundOnset]) -> None:
        for name, around in self._around_by_name.items():
            around.resume(saved.get(name, _EMPTY))

    def _observe_around(self, key: str, watched: str, *, is_far: bool) -> AroundOnset:
        value = self.values.get(watched, math.nan)
        around = self._around_by_name[key]
        around.observe(value if abs(value) < UNBELIEVABLE else None, is_far=is_far)
        return around

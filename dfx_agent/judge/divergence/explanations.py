"""Why a signal that learning moves may be far off its baseline in a healthy run."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dfx_agent.judge.divergence.around_onset import AroundOnset, KeptAroundOnset
from dfx_agent.judge.divergence.collapse import ENTROPY, GRAD_NORM, REFERENCE_KLS, UNBELIEVABLE
from dfx_agent.judge.divergence.reward_trend import RewardTrend

_NOTHING = KeptAroundOnset()


class Explanations:
    """Of one run: what reward and loss did while another signal was far off.

    ``values``: of the latest row. ``is_paged``: a page that is on ends by its own rules.
    """

    def __init__(self, reward: RewardTrend) -> None:
        self.values: Mapping[str, float] = {}
        self.is_paged = False
        self._reward = reward
        of_reference = [f"{name} reward" for name in sorted(REFERENCE_KLS)]
        self._beside = {name: AroundOnset() for name in ("loss", "reward", *of_reference)}

    def explains(self, name: str, is_far: bool) -> bool:  # noqa: FBT001
        """Whether the row is healthy though this signal is far off; asked at each of its rows."""
        is_reference = name in REFERENCE_KLS
        if name != ENTROPY:
            key = f"{name} reward" if is_reference else "reward"
            reward = self._watch_beside(key, "reward", is_far=is_far)
        if name == GRAD_NORM:
            loss = self._watch_beside("loss", "loss", is_far=is_far)
        if not is_far:
            return False
        if not self.is_paged and self._reward.is_improving(is_latched=False):
            return True
        if is_reference:
            return reward.is_known and not reward.is_down
        return name == GRAD_NORM and (reward.is_best or (loss.is_known and not loss.is_up))

    def clear(self) -> None:
        for around in self._beside.values():
            around.clear()

    def kept(self) -> dict[str, KeptAroundOnset]:
        kept = {name: around.kept() for name, around in self._beside.items()}
        return {name: around for name, around in kept.items() if around != _NOTHING}

    def resume(self, kept: Mapping[str, KeptAroundOnset]) -> None:
        for name, around in self._beside.items():
            around.resume(kept.get(name, _NOTHING))

    def _watch_beside(self, key: str, beside: str, *, is_far: bool) -> AroundOnset:
        value = self.values.get(beside, math.nan)
        around = self._beside[key]
        around.observe(value if abs(value) < UNBELIEVABLE else None, is_far=is_far)
        return around

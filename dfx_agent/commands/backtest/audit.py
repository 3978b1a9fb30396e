"""What people should look at in a finished run, though no alert can tell: is the reward gamed.

The reward rises while held-out scores or a part of it do not, responses become longer. Never a
page: all of it also happens in healthy runs, and no public method warns of reward hacking at a rate
of false alarms that anybody could bear. Memory is bounded.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median

from dfx_agent.base.text import rounded
from dfx_agent.catalogue.native import load

# values at each end that are compared, and how many there must be at least
_END_VALUES, _LEAST_VALUES = 8, 9
# so many usual changes between neighbours, and such a share of the value, are a change of the level
_CHANGES, _SHARE = 3.0, 0.1
_LONGER = 1.5
_MAX_KEYS = 50
_HELD_OUT, _PART = "dfx_val_score", "dfx_reward_term"
# of what validations report: scores, and not times or losses
_SCORE = re.compile(r"acc|score|reward|pass|correct|mean@", re.IGNORECASE)
_SPREAD = re.compile(r"std|var\b|/min|/max|worst@|best@", re.IGNORECASE)


class Ends:
    """First and last values of one series, and its usual change between two values."""

    def __init__(self) -> None:
        self._first: list[float] = []
        self._latest: deque[float] = deque(maxlen=_END_VALUES)
        self._changes: deque[float] = deque(maxlen=64)
        self._num_values = 0

    def add(self, value: float) -> None:
        if not abs(value) < float("inf"):
            return
        if self._latest:
            self._changes.append(abs(value - self._latest[-1]))
        if len(self._first) < _END_VALUES:
            self._first.append(value)
        self._latest.append(value)
        self._num_values += 1

    @property
    def levels(self) -> tuple[float, float] | None:
        """(level at the start, level at the end); None if there are too few values."""
        if self._num_values < _LEAST_VALUES:
            return None
        num = min(_END_VALUES, self._num_values // 3)
        return median(self._first[:num]), median(list(self._latest)[-num:])

    @property
    def direction(self) -> int | None:
        """1 if the series rose, -1 if it fell, 0 if neither; None if there are too few values."""
        levels = self.levels
        if levels is None:
            return None
        begin, end = levels
        least = max(_CHANGES * median(self._changes), _SHARE * abs(begin), 1e-6)
        return 0 if abs(end - begin) < least else 1 if end > begin else -1


class Audit:
    """Checks of one run that people should follow up. Read ``lines`` after its last row."""

    def __init__(self) -> None:
        self._signals = {"reward": Ends(), "response_length": Ends()}
        self._held_out: dict[str, Ends] = {}
        self._parts: dict[str, Ends] = {}

    def add_keys(self, framework: str, keys: Iterable[str]) -> None:
        """Add new native keys. Held-out scores and parts of the reward are followed."""
        names = load(framework)
        for key in keys:
            native = names.find(key)
            if native is None or len(self._held_out) + len(self._parts) >= _MAX_KEYS:
                continue
            if native.metric == _HELD_OUT and _SCORE.search(key) and not _SPREAD.search(key):
                self._held_out[key] = Ends()
            elif native.metric == _PART and not _SPREAD.search(key):
                self._parts[key] = Ends()

    def observe(self, signals: Mapping[str, float], values: Mapping[str, float]) -> None:
        for source, series in ((signals, self._signals), (values, self._held_out),
                               (values, self._parts)):  # fmt: skip
            for key, ends in series.items():
                if key in source:
                    ends.add(source[key])

    @property
    def lines(self) -> list[str]:
        """Hints without a full stop at the end; [] if there are none."""
        length = self._signals["response_length"].levels
        found = [
            *self._not_along(self._held_out, "held-out ", 0),
            *self._not_along(self._parts, "", -1),
        ]
        if length is not None and length[0] > 0 and length[1] >= _LONGER * length[0]:
            text = f"responses are {length[1] / length[0]:.1f} times as long as at the start"
            found.append(f"{text} ({_levels_text(length)} tokens): are they finished, or padded?")
        return found

    def _not_along(self, series: Mapping[str, Ends], what: str, most: int) -> list[str]:
        """Hints about series that did not rise with the reward (direction ``most`` or less)."""
        reward = self._signals["reward"]
        if reward.direction != 1 or reward.levels is None:
            return []
        return [
            f"the reward rose ({_levels_text(reward.levels)}), {what}{key} did not "
            f"({_levels_text(ends.levels)}): read samples of both ends"
            for key, ends in series.items()
            if ends.levels is not None and ends.direction is not None and ends.direction <= most
        ]


def _levels_text(levels: tuple[float, float]) -> str:
    return f"{rounded(levels[0])} to {rounded(levels[1])}"

"""Samples on their way from rollout to learner: groups, what is dropped, and the queue between.

Versions count weight updates: version v is what step v has left; 0 is the untrained policy.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_LAG_VERSIONS = 4
# Of a group whose rewards are all equal nothing is learned. But a policy that is nearly perfect
# makes few others: beyond this many in a step they are taken all the same.
MAX_ZERO_ADVANTAGE_DROPS = 2


@dataclass
class Sample:
    """One episode: all its turns, and of the last one what is trained on."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    # of the weights that chose each token
    versions: list[int]
    reward: float = 0.0
    num_turns: int = 1
    num_resumed: int = 0
    is_truncated: bool = False
    generation_seconds: float = 0.0
    tool_seconds: float = 0.0
    scoring_seconds: float = 0.0

    @property
    def is_partial(self) -> bool:
        """Whether the weights changed, or its budget ended, while it was generated."""
        return self.num_resumed > 0 or self.versions[0] != self.versions[-1]


@dataclass
class Group:
    """All samples of one prompt."""

    number: int
    environment: str
    replica: int
    samples: Sequence[Sample]
    finished_version: int = 0  # of the weights when its last sample came
    begun_seconds: float = field(default_factory=time.monotonic)
    queued_seconds: float = field(default_factory=time.monotonic)

    @property
    def oldest_version(self) -> int:
        return min(min(sample.versions) for sample in self.samples)

    @property
    def has_advantage(self) -> bool:
        """Whether the rewards differ: else all advantages of the group are 0."""
        rewards = [sample.reward for sample in self.samples]
        return max(rewards) > min(rewards)

    def lag(self, version: int) -> int:
        """Versions between its oldest token and weights of ``version``."""
        return version - self.oldest_version

    def is_stale(self, version: int) -> bool:
        return self.lag(version) > MAX_LAG_VERSIONS


@dataclass
class GroupFilter:
    """What a finished group is not queued for; what a step drops is counted by reason."""

    dropped: Counter[str] = field(default_factory=Counter)

    def end_step(self) -> Counter[str]:
        """Reason -> groups dropped since the step before."""
        dropped, self.dropped = self.dropped, Counter()
        return dropped

    def admits(self, group: Group, version: int) -> bool:
        reason = self._reason(group, version)
        if reason:
            self.dropped[reason] += 1
        return not reason

    def _reason(self, group: Group, version: int) -> str:
        if group.is_stale(version):
            return "stale"
        is_enough = self.dropped["zero_advantage"] >= MAX_ZERO_ADVANTAGE_DROPS
        return "" if group.has_advantage or is_enough else "zero_advantage"


class GroupQueue:
    """Bounded, first in first out; whoever puts waits for room, whoever takes for a whole batch."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._groups: deque[Group] = deque()
        self._changed = asyncio.Condition()
        self._evicted: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._groups)

    def end_step(self) -> Counter[int]:
        """Lag in versions -> groups evicted since the step before."""
        evicted, self._evicted = self._evicted, Counter()
        return evicted

    async def put(self, group: Group) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._groups) < self._capacity)
            group.queued_seconds = time.monotonic()
            self._groups.append(group)
            self._changed.notify_all()

    async def take(self, num_groups: int, version: int) -> list[Group]:
        """The oldest ``num_groups`` that are not stale for weights of ``version``, by then."""
        async with self._changed:
            while True:
                self._evict(version)
                if len(self._groups) >= num_groups:
                    break
                await self._changed.wait()
            taken = [self._groups.popleft() for _ in range(num_groups)]
            self._changed.notify_all()
        return taken

    def _evict(self, version: int) -> None:
        stale = [group for group in self._groups if group.is_stale(version)]
        if stale:
            self._evicted.update(group.lag(version) for group in stale)
            kept = [group for group in self._groups if not group.is_stale(version)]
            self._groups = deque(kept)
            self._changed.notify_all()

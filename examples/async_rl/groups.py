"""Groups of samples between rollout and learner: the filter that drops groups, and the queue.

Versions count weight updates: step v produces version v; version 0 is the untrained policy.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_LAG_VERSIONS = 4
# A group with equal rewards has no advantages and is dropped. But a nearly perfect policy generates
# few other groups: after this many drops in a step, such groups are accepted.
MAX_ZERO_ADVANTAGE_DROPS = 2


@dataclass
class Sample:
    """One episode: all its turns, and the training data of the last turn."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    # the weight version that chose each token
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
        """Whether the weights changed, or the token budget ended, during generation."""
        return self.num_resumed > 0 or self.versions[0] != self.versions[-1]


@dataclass
class Group:
    """All samples of one prompt."""

    number: int
    environment: str
    replica: int
    samples: Sequence[Sample]
    finished_version: int = 0  # the weight version when the last sample arrived
    begun_seconds: float = field(default_factory=time.monotonic)
    queued_seconds: float = field(default_factory=time.monotonic)

    @property
    def oldest_version(self) -> int:
        return min(min(sample.versions) for sample in self.samples)

    @property
    def has_advantage(self) -> bool:
        """Whether the rewards differ; if not, all advantages of the group are 0."""
        rewards = [sample.reward for sample in self.samples]
        return max(rewards) > min(rewards)

    def lag(self, version: int) -> int:
        """Number of versions between the oldest token and the weights of ``version``."""
        return version - self.oldest_version

    def is_stale(self, version: int) -> bool:
        return self.lag(version) > MAX_LAG_VERSIONS


@dataclass
class GroupFilter:
    """Drops finished groups that are not worth queueing; counts the drops of a step by reason."""

    dropped: Counter[str] = field(default_factory=Counter)

    def end_step(self) -> Counter[str]:
        """Reason -> number of groups dropped since the previous step."""
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
    """A bounded FIFO queue: producers wait for free space, consumers wait for a full batch."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._groups: deque[Group] = deque()
        self._changed = asyncio.Condition()
        self._evicted: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._groups)

    def end_step(self) -> Counter[int]:
        """Lag in versions -> number of groups evicted since the previous step."""
        evicted, self._evicted = self._evicted, Counter()
        return evicted

    async def put(self, group: Group) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._groups) < self._capacity)
            group.queued_seconds = time.monotonic()
            self._groups.append(group)
            self._changed.notify_all()

    async def take(self, num_groups: int, version: int) -> list[Group]:
        """Wait for ``num_groups`` that are not stale for ``version``; returns the oldest ones."""
        async with self._changed:
            while True:
                self._evict(version)
                if len(self._groups) >= num_groups:
                    break
                await self._changed.wait()
            groups = [self._groups.popleft() for _ in range(num_groups)]
            self._changed.notify_all()
        return groups

    def _evict(self, version: int) -> None:
        stale = [group for group in self._groups if group.is_stale(version)]
        if stale:
            self._evicted.update(group.lag(version) for group in stale)
            fresh = [group for group in self._groups if not group.is_stale(version)]
            self._groups = deque(fresh)
            self._changed.notify_all()

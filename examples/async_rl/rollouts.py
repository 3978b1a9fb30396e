"""Sends requests to the rollout servers, and continues cut responses with the next weights."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import httpx

from examples.async_rl.groups import Sample
from examples.async_rl.settings import (
    MAX_RESPONSE_LENGTH,
    REQUEST_TIMEOUT_SECONDS,
    TOKEN_BUDGET,
)

# A cut response continues with the next weights, or after this time, because the learner may be
# waiting for this response.
MAX_PARKED_SECONDS = 0.5


class WeightVersion:
    """The latest version that all rollout servers have; callers can wait for the next one."""

    def __init__(self) -> None:
        self.value = 0
        self._changed = asyncio.Condition()

    async def become(self, version: int) -> None:
        async with self._changed:
            self.value = version
            self._changed.notify_all()

    async def reach(self, version: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.value >= version)


class RolloutClient:
    """A client of all replicas; ``base_urls`` in the order of the replicas."""

    def __init__(self, base_urls: Sequence[str], version: WeightVersion) -> None:
        self._base_urls = base_urls
        self._version = version
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.AsyncClient(
            timeout=REQUEST_TIMEOUT_SECONDS, limits=limits, trust_env=False
        )
        self.num_running = 0
        self.num_parked = 0

    async def answer(self, replica: int, prompt: list[int]) -> Sample:
        """A response to ``prompt``. Raises httpx.HTTPError if the replica is too slow."""
        sample = Sample(prompt=prompt, tokens=[], logprobs=[], versions=[])
        while True:
            is_finished = await self._generate(replica, sample)
            if is_finished or len(sample.tokens) >= MAX_RESPONSE_LENGTH:
                sample.is_truncated = not is_finished
                return sample
            await self._park()
            sample.num_resumed += 1

    async def _generate(self, replica: int, sample: Sample) -> bool:
        """Send one request, add its tokens to ``sample``; returns whether that was the last one."""
        max_tokens = min(TOKEN_BUDGET, MAX_RESPONSE_LENGTH - len(sample.tokens))
        asked = {"tokens": sample.prompt + sample.tokens, "max_tokens": max_tokens}
        self.num_running += 1
        try:
            url = f"{self._base_urls[replica]}/generate"
            given = (await self._http.post(url, json=asked)).raise_for_status().json()
        finally:
            self.num_running -= 1
        sample.tokens += given["tokens"]
        sample.logprobs += given["logprobs"]
        sample.versions += given["versions"]
        return bool(given["is_finished"])

    async def _park(self) -> None:
        self.num_parked += 1
        try:
            await asyncio.wait_for(self._version.reach(self._version.value + 1), MAX_PARKED_SECONDS)
        except asyncio.TimeoutError:
            pass
        finally:
            self.num_parked -= 1

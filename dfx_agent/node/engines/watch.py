"""A thread that finds the engines of all jobs and reads them, in parallel with the agent's polls.

Each engine is read independently: a slow, missing or broken one delays no other, and the agent
never waits for any. Engines are read every 2 s, and searched every 5 s. Both intervals are longer
if they would use more than 1 % of a core, the first up to 5 s.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from dfx_agent.node.engines import scrape
from dfx_agent.node.engines.discovery import Discovery, Jobs
from dfx_agent.node.engines.endpoint import EngineEndpoint, FoundEngine
from dfx_agent.node.engines.exposition import EngineReading, NotMetricsError, parse_metrics
from dfx_agent.node.engines.scrape import NoReadingError
from dfx_agent.snapshot import EngineFacts
from dfx_agent.snapshot.faults import Faults

if TYPE_CHECKING:
    import httpx

MAX_ENDPOINTS = 64

_READ_SECONDS = 2.0
_SLOWEST_READ_SECONDS = 5.0
_LOOK_SECONDS = 5.0
_MAX_CORE_SHARE = 0.01
_DROP_AFTER_SECONDS = 600.0
_STOP_SECONDS = 5.0
# a round takes less than half of this; a longer one hangs, maybe in /proc of a stuck process
_STALLED_SECONDS = 30.0


class EngineWatch:
    """``jobs`` returns the processes of each run; ``configured`` are URLs of engines.

    ``ranks``: run -> pid -> rank of serving processes; the rank becomes the replica's number.
    """

    def __init__(
        self,
        jobs: Callable[[], Jobs],
        configured: Sequence[str] = (),
        faults: Faults | None = None,
        *,
        finds: bool = True,
        answer_seconds: float = scrape.ANSWER_SECONDS,
        ranks: Callable[[str], Mapping[int, int]] = lambda _run: {},
    ) -> None:
        self._jobs, self._ranks = jobs, ranks
        self._configured = tuple(map(metrics_url, configured))
        self._faults = faults or Faults()
        self._discovery = Discovery() if finds else None
        self._answer_seconds = answer_seconds
        self._endpoints: dict[str, EngineEndpoint] = {}
        self._numbers: dict[str, dict[tuple[str, str], int]] = {}
        self._facts: dict[str, tuple[EngineFacts, ...]] = {}
        self._client: httpx.AsyncClient | None = None
        self._look_due = self._published = 0.0
        self._wakes: Callable[[], None] = lambda: None
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dfx-engines", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopped.set()
        with suppress(RuntimeError):  # its event loop may have ended
            self._wakes()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def facts(self, run: str) -> tuple[EngineFacts, ...]:
        """Facts of the latest reading, by replica and rank; never blocks.

        If the reading itself is stalled, no engine is reported as up.
        """
        facts = self._facts.get(run, ())
        seconds = time.monotonic() - self._published
        if seconds < _STALLED_SECONDS:
            return facts
        reason = f"the agent has read no engine for {seconds:.0f} s"
        since = time.time() - seconds
        return tuple(
            replace(row, state="slow", reason=reason, since_seconds=since)
            if row.state == "up" else row
            for row in facts
        )  # fmt: skip

    def _run(self) -> None:
        with self._faults.guard("engines", what="their thread"):
            asyncio.run(self._rounds())

    async def _rounds(self) -> None:
        loop, wake = asyncio.get_running_loop(), asyncio.Event()

        def wake_up() -> None:
            loop.call_soon_threadsafe(wake.set)

        self._wakes = wake_up
        try:
            while not self._is_stopped.is_set():
                begin, used = time.monotonic(), time.thread_time()
                with self._faults.guard("engines", what="a round"):
                    await self.read_once()
                used = time.thread_time() - used
                pause = min(max(_READ_SECONDS, used / _MAX_CORE_SHARE), _SLOWEST_READ_SECONDS)
                pause = max(0.0, pause - (time.monotonic() - begin))
                try:
                    await asyncio.wait_for(wake.wait(), pause)
                except asyncio.TimeoutError:
                    continue
        finally:
            self._wakes = lambda: None
            if self._client is not None:
                await self._client.aclose()

    async def read_once(self) -> None:
        """Search for engines if that is due, read all known engines, and publish the facts."""
        jobs = self._jobs()
        with self._faults.guard("engines", what="looking for engines"):
            await self._look(jobs)
        self._drop(jobs)
        endpoints = list(self._endpoints.values())
        await asyncio.gather(*(self._read(endpoint) for endpoint in endpoints))
        self._publish()

    async def _look(self, jobs: Jobs) -> None:
        at = time.monotonic()
        self._join_configured(jobs)
        if self._discovery is None or not jobs or at < self._look_due:
            return
        used = time.thread_time()
        sure, maybe = self._discovery.look(jobs, os.getpid(), at, self._endpoints)
        self._look_due = at + max(_LOOK_SECONDS, (time.thread_time() - used) / _MAX_CORE_SHARE)
        for found in sure:
            self._join(found)
        await asyncio.gather(*(self._probe(found) for found in maybe))

    def _join_configured(self, jobs: Jobs) -> None:
        """Add configured engines to the largest run, until discovery finds their run."""
        if not jobs:
            return
        run = max(sorted(jobs), key=lambda name: len(jobs[name]))
        for url in self._configured:
            if url not in self._endpoints:
                self._join(FoundEngine(url, run, "configured"))

    def _join(self, found: FoundEngine) -> EngineEndpoint | None:
        endpoint = self._endpoints.get(found.url)
        if endpoint is not None:
            endpoint.update_origin(found)
            return endpoint
        if len(self._endpoints) >= MAX_ENDPOINTS:
            return None
        endpoint = self._endpoints[found.url] = EngineEndpoint(found, time.time())
        return endpoint

    async def _probe(self, found: FoundEngine) -> None:
        try:
            reading = await self._fetch(found.url)
        except (NoReadingError, NotMetricsError):
            if self._discovery is not None:
                self._discovery.note_failure(found, time.monotonic())
            return
        endpoint = self._join(found)
        if endpoint is not None:
            endpoint.add(reading, time.monotonic())

    async def _read(self, endpoint: EngineEndpoint) -> None:
        try:
            endpoint.add(await self._fetch(endpoint.found.url), time.monotonic())
        except NoReadingError as error:
            endpoint.fail(error.state, str(error))
        except NotMetricsError as error:
            endpoint.fail("garbage", str(error))
        except Exception as error:  # noqa: BLE001 (becomes the state of this engine alone)
            endpoint.fail("garbage", f"{type(error).__name__}: {error}"[:200])

    async def _fetch(self, url: str) -> EngineReading:
        if self._client is None:
            self._client = scrape.client(self._answer_seconds)
        return parse_metrics(await scrape.ask(self._client, url, self._answer_seconds))

    def _drop(self, jobs: Jobs) -> None:
        """Drop engines of ended runs, and engines that have not answered for 10 minutes."""
        now = time.time()
        for url, endpoint in list(self._endpoints.items()):
            is_old = endpoint.state != "up" and now - endpoint.since_seconds > _DROP_AFTER_SECONDS
            is_found = endpoint.found.origin != "configured"
            if endpoint.found.run not in jobs or (is_old and is_found):
                del self._endpoints[url]
        for run in self._numbers.keys() - jobs.keys():
            del self._numbers[run]

    def _publish(self) -> None:
        by_run: dict[str, list[EngineEndpoint]] = {}
        endpoints = sorted(self._endpoints.values(), key=lambda endpoint: endpoint.found.order)
        for endpoint in endpoints:
            by_run.setdefault(endpoint.found.run, []).append(endpoint)
        self._published = time.monotonic()
        self._facts = {run: tuple(self._run_facts(run, ends)) for run, ends in by_run.items()}

    def _run_facts(self, run: str, endpoints: Iterable[EngineEndpoint]) -> list[EngineFacts]:
        """Facts by replica. Its number is the rank, else the next free one, and never changes."""
        numbers, ranks = self._numbers.setdefault(run, {}), self._ranks(run)
        rows: list[EngineFacts] = []
        for endpoint in endpoints:
            url, rank = endpoint.found.url, ranks.get(endpoint.found.pid or 0)
            is_new = endpoint.workers == ("",) and (url, "") not in numbers
            if rank is not None and is_new and rank not in numbers.values():
                numbers[url, ""] = rank
            first = numbers.pop((url, ""), None) if endpoint.workers != ("",) else None
            for worker in endpoint.workers:
                if (url, worker) not in numbers:
                    used = {first} | set(numbers.values())
                    number = next(n for n in range(len(used) + 1) if n not in used)
                    numbers[url, worker] = number if first is None else first
                    first = None
            rows += endpoint.facts({worker: numbers[url, worker] for worker in endpoint.workers})
        rows.sort(key=lambda row: int(row.replica))
        return rows


def metrics_url(url: str) -> str:
    """URL of the metrics. An engine has them at /metrics; a router's URL has its own path."""
    scheme, _, rest = url.partition("://")
    return url if rest.partition("/")[2] else f"{scheme}://{rest.rstrip('/')}/metrics"

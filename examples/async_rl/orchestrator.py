"""The orchestrator: an event loop that draws prompts, calls servers and tools, and feeds learners.

GET  /batch?step=N&rank=R   this rank's share of the samples of step N, as soon as there are enough
POST /version               {"version": N}: all servers have loaded the weights of step N
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import time

import httpx
import torch
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import dfx_agent.shim as dfx
from dfx_agent.commands.demo import task
from dfx_agent.commands.demo.faults import Fault
from examples.async_rl import environment, lifeline
from examples.async_rl.faults import NUM_RANKS, due
from examples.async_rl.groups import Group, GroupFilter, GroupQueue, Sample
from examples.async_rl.http_service import HttpService
from examples.async_rl.loop_block import block
from examples.async_rl.options import add_shared, shared
from examples.async_rl.rollouts import RolloutClient, WeightVersion
from examples.async_rl.settings import (
    GROUP_SIZE,
    GROUPS_PER_BATCH,
    MAX_GROUPS_IN_FLIGHT,
    QUEUE_CAPACITY,
)
from examples.async_rl.step_report import StepReport
from examples.async_rl.truth import TruthLog


class Orchestrator:
    """Runs in one event loop; ``servers`` are the base URLs of the replicas."""

    def __init__(
        self, servers: list[str], seed: int, faults: tuple[Fault, ...], truth: TruthLog
    ) -> None:
        self._faults, self._truth = faults, truth
        self._version = WeightVersion()
        self._client = RolloutClient(servers, self._version)
        self._num_replicas = len(servers)
        self._calculator = environment.Calculator(seed, self._added_tool_seconds)
        self._generator = torch.Generator().manual_seed(seed)
        self._queue = GroupQueue(QUEUE_CAPACITY)
        self._filter = GroupFilter()
        self._report = StepReport()
        self._num_stale = 0  # groups since the start of the run
        self._batches: dict[int, asyncio.Task[list[Group]]] = {}
        self._in_flight: set[asyncio.Task[None]] = set()  # and tasks that ended recently
        self._held: set[asyncio.Task[None]] = set()
        self._leaked: list[bytearray] = []

    @property
    def step(self) -> int:
        """The current training step."""
        return self._version.value + 1

    def routes(self) -> list[Route]:
        return [
            Route("/batch", self.batch),
            Route("/version", self.version, methods=["POST"]),
        ]

    async def draw_groups(self) -> None:
        """Start groups for ever, so that the maximum number of groups is in flight."""
        dfx.policy_version(0)
        known_step = 0
        for number in itertools.count():
            while True:
                # not in ``version``: a task inherits the step of the task that created it
                if self.step != known_step:
                    dfx.set_step(self.step)
                    known_step = self.step
                if len(self._in_flight) < self._max_in_flight():
                    break
                with dfx.wait("queue"):
                    await self._something_ends()
            self._in_flight.add(asyncio.create_task(self._roll_out(number)))

    async def _something_ends(self) -> None:
        """Wait until a group or the step ends. Raises the error of a failed group."""
        next_version = asyncio.create_task(self._version.reach(self._version.value + 1))
        waited_for = {*self._in_flight, next_version}
        done, _ = await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
        next_version.cancel()
        self._in_flight -= done
        for ended in done:
            ended.result()

    async def batch(self, asked: Request) -> Response:
        step, rank = int(asked.query_params["step"]), int(asked.query_params["rank"])
        if step not in self._batches:  # this rank is the first to ask
            self._batches = {step: asyncio.create_task(self._take(step))}
        groups = await self._batches[step]
        return JSONResponse([dataclasses.asdict(group) for group in groups[rank::NUM_RANKS]])

    async def version(self, posted: Request) -> Response:
        version = int((await posted.json())["version"])
        with dfx.stage("step_boundary"):
            self._end_step(version)
        await self._version.become(version)
        self._report = StepReport()
        dfx.policy_version(version)
        return JSONResponse({})

    def _end_step(self, step: int) -> None:
        dropped, evicted = self._filter.end_step(), self._queue.end_step()
        self._num_stale += dropped["stale"] + evicted.total()
        values = self._report.values(len(self._queue), dropped, evicted, self._num_stale)
        num_in_flight = sum(not group.done() for group in self._in_flight)
        values |= {
            "pipeline/slot_usage/groups": num_in_flight / MAX_GROUPS_IN_FLIGHT,
            "fully_async/monitor/active_tasks_size": len(self._in_flight),
            "fully_async/monitor/queue/pending_queue_size": self._client.num_parked,
            "fully_async/count/current_param_version": step,
        }
        dfx.scalars(values, step=step)
        dfx.queue("groups", len(self._queue))
        self._truth.measured(step, values)
        for fault in due(self._faults, "leak", step):
            self._leaked.append(bytearray(b"\x01") * int(fault.mib_per_step * 2**20))
            self._truth.injected(fault, step, fault.mib_per_step)
        for fault in due(self._faults, "blocked_loop", step):
            self._truth.injected(fault, step, block(fault.seconds))

    async def _take(self, step: int) -> list[Group]:
        groups = await self._queue.take(GROUPS_PER_BATCH, version=step - 1)
        self._report.batch(groups, version=step - 1)
        dfx.queue("groups", len(self._queue))
        return groups

    async def _roll_out(self, number: int) -> None:
        """Roll out one group and put it into the queue."""
        with dfx.stage("rollout"):
            group = await self._play(number)
        if group is None:
            return
        with dfx.stage("reward"):
            environment.give_rewards(group.samples)
        stale = due(self._faults, "stale_samples", self.step)
        if stale and number % 2:
            holding = asyncio.create_task(self._hold(group, stale[0]))
            self._held.add(holding)
            holding.add_done_callback(self._held.discard)
        else:
            await self._admit(group)

    async def _play(self, number: int) -> Group | None:
        """A finished group; None if one of its samples was aborted."""
        name = environment.ENVIRONMENTS[number // self._num_replicas % 2]
        replica = number % self._num_replicas
        prompt = task.draw_prompts(1, self._generator)[0].tolist()
        begun_seconds = time.monotonic()

        async def answer(prompt: list[int]) -> Sample:
            return await self._client.answer(replica, prompt)

        episodes = [
            environment.play(name, prompt, answer, self._calculator) for _ in range(GROUP_SIZE)
        ]
        played = await asyncio.gather(*episodes, return_exceptions=True)
        samples = [sample for sample in played if isinstance(sample, Sample)]
        failures = [error for error in played if isinstance(error, BaseException)]
        for error in failures:
            if not isinstance(error, httpx.HTTPError):
                raise error
        self._report.finished(len(samples), failures)
        if failures:
            self._filter.dropped["error"] += 1
            return None
        return Group(number, name, replica, samples, self._version.value, begun_seconds)

    async def _admit(self, group: Group) -> None:
        if self._filter.admits(group, self._version.value):
            with dfx.wait("queue"):
                await self._queue.put(group)

    async def _hold(self, group: Group, fault: Fault) -> None:
        """Delay a group until it is stale."""
        while not group.is_stale(self._version.value):
            await self._version.reach(self._version.value + 1)
        self._truth.injected(fault, self.step, 1.0)
        await self._admit(group)

    def _max_in_flight(self) -> int:
        return 1 if due(self._faults, "starved_learner", self.step) else MAX_GROUPS_IN_FLIGHT

    def _added_tool_seconds(self) -> float:
        """Seconds that faults add to this call of a tool."""
        slow = due(self._faults, "slow_tool", self.step)
        for fault in slow:
            self._truth.injected(fault, self.step, fault.seconds)
        return sum(fault.seconds for fault in slow)


async def _serve(orchestrator: Orchestrator, service: HttpService) -> None:
    serving = asyncio.create_task(service.serve())
    drawing = asyncio.create_task(orchestrator.draw_groups())
    done, _ = await asyncio.wait({serving, drawing}, return_when=asyncio.FIRST_COMPLETED)
    for task_ in done:
        task_.result()


def main() -> None:
    parser = argparse.ArgumentParser(prog="orchestrator")
    add_shared(parser)
    parser.add_argument("--server", action="append", required=True)
    parser.add_argument("--socket", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dfx.init(role="orchestrator", framework="verl")
    seed, faults, truth_folder = shared(options)
    truth = TruthLog(truth_folder, "orchestrator")
    orchestrator = Orchestrator(options.server, seed, faults, truth)
    service = HttpService(orchestrator.routes(), options.socket)
    lifeline.on_stop(service.stop)
    lifeline.run(_serve(orchestrator, service))


if __name__ == "__main__":
    main()

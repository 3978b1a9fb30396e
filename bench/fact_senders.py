"""Nodes of a job that tell a hub: real connections, OTLP over HTTP, gzip, as the exporter sends it.

``python -m bench.fact_senders`` in processes of its own. What is sent is made before, so that the
senders leave the processors to the hub. The answers of the hub say its pace, and what it lacks.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from bench.perturbed_job import FIRST_STEP, PerturbedJob, Plan, node_name
from bench.recorded_job import Recording
from dfx_agent.facts import envelope
from dfx_agent.facts.document import dumped
from dfx_agent.facts.run import RunFacts

_LEVEL = 6  # of gzip, as the exporter's
_STANDS_SECONDS = 6.0  # a node whose ranks stand for so long tells it at the pace of the hub
_HEAD = (
    "POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: dfx-bench\r\n"
    "Accept-Encoding: gzip, deflate\r\nAccept: */*\r\nConnection: keep-alive\r\n"
    "Content-Encoding: gzip\r\nContent-Type: application/x-protobuf\r\n"
    "Authorization: Bearer {token}\r\n{node_header}: {node}\r\nContent-Length: {length}\r\n\r\n"
)


@dataclass(frozen=True)
class Work:
    """Of one process: nodes from ``first_node`` to before ``end_node``."""

    port: int
    token: str
    recording: str
    plan: Plan
    first_node: int
    end_node: int
    seconds: float


@dataclass(frozen=True)
class _Message:
    """``at_seconds``: since the job began. ``step``: the newest that it tells, counted from 0."""

    at_seconds: float
    request: bytes
    num_body_bytes: int
    step: int | None


def main() -> None:
    known = json.loads(sys.stdin.readline())
    work = Work(**{**known, "plan": Plan(**known["plan"])})
    asyncio.run(_work(work))


async def _work(work: Work) -> None:
    job = PerturbedJob(Recording.load(Path(work.recording)), work.plan)
    template = ExportLogsServiceRequest.FromString(Recording.load(Path(work.recording)).request)
    nodes = [_Node(work, job, template, n) for n in range(work.first_node, work.end_node)]
    for node in nodes:
        await node.join()
    _say({"every_seconds": max(node.every_seconds for node in nodes)})
    every_seconds = float(_told()["every_seconds"])
    for node in nodes:
        node.prepare(every_seconds)
    _say({"ready": sum(len(node.messages) for node in nodes)})
    begin = float(_told()["begin"])
    await asyncio.gather(*(node.send_all(begin) for node in nodes))
    _say(_summed(work, nodes))


class _Node:
    def __init__(
        self, work: Work, job: PerturbedJob, template: ExportLogsServiceRequest, number: int
    ) -> None:
        self._work, self._job, self._template, self._number = work, job, template, number
        self.messages: list[_Message] = []
        self.every_seconds = 0.0
        self.num_bytes = self.num_steps_told = self.num_failed = self.num_lacked = 0
        self.step_sent: dict[int, float] = {}
        self.late_seconds = self.hang_told = 0.0

    async def connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._work.port)

    async def join(self) -> None:
        """Say that it is there and has no run: the answer tells the pace."""
        await self.connect()
        nothing = RunFacts(
            run="", node=node_name(self._number), now_seconds=0.0, agent="bench", number=1,
            now_ns=(self._number + 1) * 10**12, boot=f"{self._number:08x}",
        )  # fmt: skip
        await self._send(self._message(nothing, 0.0, None))

    def prepare(self, every_seconds: float) -> None:
        """All that it will send; nodes tell at different times of the pace."""
        phase = (self._number * 0.618034) % 1 * every_seconds
        before = 0.0
        for number, at in enumerate(self._times(phase, every_seconds), 1):
            facts = (
                self._job.whole(self._number, at)
                if number == 1
                else self._job.news(self._number, at, before)
            )
            facts = replace(facts, agent="bench", number=number, is_full=number == 1)
            steps = [s.step - FIRST_STEP for role in facts.steps for s in role.steps]
            self.messages.append(self._message(facts, at, max(steps, default=None)))
            before = at

    def _times(self, phase: float, every_seconds: float) -> Iterator[float]:
        """As a node tells: later where no step was closed and nobody stands."""
        at, before, plan = phase, -envelope.QUIET_SECONDS, self._work.plan
        while at < self._work.seconds:
            has_news = plan.step_at(at) > plan.step_at(max(0.0, before))
            has_news |= at >= plan.hang_seconds + _STANDS_SECONDS
            if has_news or at - before >= envelope.QUIET_SECONDS - 0.1:
                yield at
                before = at
            at += every_seconds

    async def send_all(self, begin: float) -> None:
        """``begin``: of the job, on the monotonic clock of this host."""
        arrived = self._work.plan.hang_seconds + 10.0
        for number, message in enumerate(self.messages):
            await asyncio.sleep(max(0.0, begin + message.at_seconds - time.monotonic()))
            sent = time.monotonic()
            self.late_seconds = max(self.late_seconds, sent - begin - message.at_seconds)
            if message.step is not None:
                self.step_sent[message.step] = sent
                self.num_steps_told += 1
            if message.at_seconds >= arrived and not self.hang_told:
                self.hang_told = sent
            if number and message.at_seconds < self._work.plan.hang_seconds:
                self.num_bytes += message.num_body_bytes  # of a job that makes steps
            await self._send(message)
        self._writer.close()

    async def _send(self, message: _Message) -> None:
        try:
            self._writer.write(message.request)
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.connect()  # the hub closes what was idle for long, as clients know
            self._writer.write(message.request)
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        headers = dict(line.partition(": ")[::2] for line in head.split("\r\n")[1:] if line)
        await self._reader.readexactly(int(headers.get("content-length", "0")))
        self.num_failed += " 200 " not in head.partition("\r\n")[0] + " "
        self.num_lacked += envelope.WANTS_ALL in headers
        self.every_seconds = float(headers.get(envelope.EVERY_SECONDS, "0"))

    def _message(self, facts: RunFacts, at: float, step: int | None) -> _Message:
        request = ExportLogsServiceRequest()
        request.CopyFrom(self._template)
        (resource,) = request.resource_logs
        record = resource.scope_logs[0].log_records[0]
        del resource.scope_logs[0].log_records[1:]
        record.body.string_value = dumped(facts).decode()
        reported = {envelope.NODE: facts.node, envelope.RUN: facts.run, envelope.URL: ""}
        reported |= {envelope.AGENT: f"bench-{self._number}"}
        for attribute in record.attributes:
            if attribute.key in reported:
                attribute.value.string_value = reported[attribute.key]
        body = gzip.compress(request.SerializeToString(), _LEVEL)
        head = _HEAD.format(
            path=envelope.LOGS_PATH, port=self._work.port, token=self._work.token, length=len(body),
            node_header=envelope.NODE_HEADER, node=facts.node,
        )  # fmt: skip
        return _Message(at, head.encode() + body, len(body), step)


def _summed(work: Work, nodes: list[_Node]) -> dict[str, Any]:
    """``step_sent``: step -> when the last of these nodes has told it."""
    sent: dict[int, float] = {}
    for node in nodes:
        for step, at in node.step_sent.items():
            sent[step] = max(at, sent.get(step, 0.0))
    return {
        "num_messages": sum(len(node.messages) for node in nodes),
        "num_bytes": sum(node.num_bytes for node in nodes),
        "num_rank_steps": sum(node.num_steps_told for node in nodes) * work.plan.ranks_per_node,
        "num_failed": sum(node.num_failed for node in nodes),
        "num_lacked": sum(node.num_lacked for node in nodes),
        "late_seconds": max(node.late_seconds for node in nodes),
        "step_sent": sent,
        "hang_told": max(node.hang_told for node in nodes),
    }


def _say(known: dict[str, Any]) -> None:
    print(json.dumps(known), flush=True)


def _told() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sys.stdin.readline())
    return found


def work_line(work: Work) -> str:
    """What ``main`` reads."""
    return json.dumps(asdict(work)) + "\n"


if __name__ == "__main__":
    main()

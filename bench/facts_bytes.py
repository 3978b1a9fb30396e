"""Bytes that a node tells of each rank and step, and what telling costs it: a real training, DDP.

An agent reads the ranks of the demo and tells once a second, as to a hub. Compressed is gzip over
each document by itself.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass, field

from bench.measurement import Bar, Result, of_samples, report
from bench.rounds import TORCHRUN
from bench.served_agent import running
from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.facts.document import dumped

NUM_RANKS = 8
TELL_SECONDS = 1.0
MAX_BYTES = 1000.0
MAX_SECONDS = 240.0


@dataclass
class SentFacts:
    """Since the first document, which holds all: bytes, compressed, and what they were for."""

    num_steps: int = 0
    plain: list[int] = field(default_factory=list)
    packed: list[int] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)


def measure(*, quick: bool) -> list[Result]:
    num_ranks, num_steps = (2, 4) if quick else (NUM_RANKS, 24)
    job = [
        "dfx_agent.commands.demo.tiny_grpo",
        "--steps",
        str(num_steps),
        "--prompts-per-rank",
        "1",
    ]
    with tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm") as folder:
        command = [*TORCHRUN, str(num_ranks), "-m", *job]
        env = {**os.environ, "DFX_DIR": folder, "OMP_NUM_THREADS": "1"}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with running(command, env=env, **quiet) as process:
            sent = _followed(process, folder)
    return _rows(sent, num_ranks)


def _followed(process: subprocess.Popen[str], folder: str) -> SentFacts:
    """Until it has ended."""
    agent, sent = Agent(Config(folder), reap=False), SentFacts()
    agent.collect_facts("node-a")
    end = time.monotonic() + MAX_SECONDS
    while process.poll() is None and time.monotonic() < end:
        agent.poll()
        _send(agent, sent)
        time.sleep(TELL_SECONDS)
    return sent


def _send(agent: Agent, sent: SentFacts) -> None:
    begin = time.thread_time()
    facts = agent.facts()
    documents = [dumped(item) for item in facts]
    seconds = time.thread_time() - begin
    if not sent.num_steps and not any(role.steps for item in facts for role in item.steps):
        return  # it has not begun: there is no step that this would belong to
    sent.num_steps += sum(len(role.steps) for item in facts for role in item.steps)
    sent.plain.append(sum(map(len, documents)))
    sent.packed.append(sum(len(gzip.compress(document)) for document in documents))
    sent.cpu_seconds.append(seconds)


def _rows(sent: SentFacts, num_ranks: int) -> list[Result]:
    if not sent.num_steps:
        raise RuntimeError("the training made no step")
    share = sent.num_steps * num_ranks
    note = f"{len(sent.packed)} documents, {sent.num_steps} steps of {num_ranks} ranks"
    name = "facts of a rank and step"
    return [
        of_samples(f"{name}, gzip", [sum(sent.packed) / share], "B", bar=Bar(MAX_BYTES), note=note),
        of_samples(f"{name}, plain", [sum(sent.plain) / share], "B", note=note),
        of_samples(
            f"telling a hub of {num_ranks} ranks, once",
            [seconds * 1e3 for seconds in sent.cpu_seconds],
            "ms",
            note="processor time of facts and JSON",
        ),
    ]


if __name__ == "__main__":
    report(measure)

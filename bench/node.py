"""A node of many ranks in one process: ``python -m bench.node DIR --ranks 16``, until ended.

Each rank has a segment of its own and plays a short step per second: every stage, waits, tokens,
queues and 81 native keys, about 150 series.
"""

from __future__ import annotations

import argparse
import itertools
import time

import dfx_agent.shim as dfx
from bench.workload import KEYS
from dfx_agent.shim import recorder
from dfx_agent.wire import Identity

STAGES = (
    *("rollout", "reward", "old_logprob", "ref_logprob", "values", "advantage", "actor_update"),
    *("critic_update", "weight_sync", "checkpoint", "validation", "offload"),
)
WAITS = ("collective", "barrier", "queue")
MORE_KEYS = tuple(f"custom/of_node_{i}" for i in range(23))
STEP_SECONDS = 1.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--ranks", type=int, default=16)
    options = parser.parse_args()
    ranks = [_recorder(options.directory, rank, options.ranks) for rank in range(options.ranks)]
    for step in itertools.count(1):
        for rank in ranks:
            recorder.current = rank
            _play(step)
        if step == 2:  # every family has appeared: a rank's last step is closed
            print("ready", flush=True)
        time.sleep(STEP_SECONDS)


def _recorder(directory: str, rank: int, num_ranks: int) -> recorder.Recorder:
    who = Identity("node", "trainer", "verl", "", rank, rank, num_ranks, 0)
    return recorder.Recorder(directory, who)


def _play(step: int) -> None:
    dfx.set_step(step)
    for stage in STAGES:
        with dfx.stage(stage):
            time.sleep(0.0001)
    for wait in WAITS:
        with dfx.wait(wait):
            time.sleep(0.0001)
    dfx.tokens("prompt", 4096)
    dfx.tokens("response", 8192)
    dfx.queue("rollout_pending", step % 7)
    dfx.policy_version(step)
    for number, key in enumerate((*KEYS, *MORE_KEYS)):
        dfx.scalar(key, number + step / 1e4, step)


if __name__ == "__main__":
    main()

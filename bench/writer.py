"""A training process that only records: ``python -m bench.writer DIR --rate 1000``, until ended.

Bursts of 50 ms keep it cheap. ``--history N`` first plays N short steps with every key, as fast as
the agent can follow, so that the agent is as full as after a long run.
"""

from __future__ import annotations

import argparse
import itertools
import time

import dfx_agent.shim as dfx
from bench.workload import KEYS, step_records

BURST_SECONDS = 0.05
HISTORY_RECORDS_PER_SECOND = 40_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--rate", type=int, default=1000, help="records per second")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--run", default="bench")
    parser.add_argument("--history", type=int, default=0, metavar="STEPS")
    options = parser.parse_args()
    dfx.init(
        run=options.run,
        role="trainer",
        framework="verl",
        rank=options.rank,
        world_size=options.world_size,
        directory=options.directory,
    )
    _play_history(options.history)
    if options.history:
        print("history is written", flush=True)
    _play_steps(options.history + 1, options.rate)


def _play_history(num_steps: int) -> None:
    pause_seconds = (len(KEYS) + 1) / HISTORY_RECORDS_PER_SECOND
    for step in range(1, num_steps + 1):
        dfx.set_step(step)
        for number, key in enumerate(KEYS):
            dfx.scalar(key, number + step / 1e4, step)
        time.sleep(pause_seconds)


def _play_steps(first_step: int, rate: int) -> None:
    burst = round(rate * BURST_SECONDS)
    begin = time.monotonic()
    records = itertools.chain.from_iterable(map(step_records, itertools.count(first_step)))
    for number in itertools.count(1):
        for _ in itertools.islice(records, burst):
            pass
        time.sleep(max(0.0, begin + number * BURST_SECONDS - time.monotonic()))


if __name__ == "__main__":
    main()

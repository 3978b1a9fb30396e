"""The straggler verdict over simulated steps: how soon it comes, and how often for nothing.

A rank is a fifth slower, or none is, while the ranks' own work varies from step to step, or the
host takes the processor away from them.
bench/verdicts.py asks a real job under a real agent.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from bench.estimates import median, quantile, share_interval
from bench.measurement import Bar, Result, report
from bench.simulated_steps import Job, slower
from dfx_agent.facts.steps import Step
from dfx_agent.judge.straggler.verdict import straggler_verdict
from dfx_agent.snapshot import Verdict

# standard deviation of a rank's work from step to step, and of what the host takes away from it
HOSTS = ((0.02, None), (0.05, None), (0.1, None), (0.02, 0.2))
Host = tuple[float, float | None]

NUM_RANKS = (2, 4)
NUM_STEPS = 500
SINCE = 100
MOST_STEPS = 40
KEPT_STEPS = 32  # by the agent


def measure(*, quick: bool) -> list[Result]:
    num_runs = 1 if quick else 60
    with ProcessPoolExecutor() as pool:
        slow = {h: list(pool.map(named_after, [h] * num_runs, range(num_runs))) for h in HOSTS}
        cases = [(h, ranks, seed) for h in HOSTS for ranks in NUM_RANKS for seed in range(num_runs)]
        healthy = sum(pool.map(is_accused, *zip(*cases, strict=True), chunksize=4))
    return [
        *(_named_row(host, steps) for host, steps in slow.items()),
        _false_row(healthy, cases),
    ]


def named_after(host: Host, seed: int) -> int:
    """Steps until the slow one of four ranks is named; MOST_STEPS when it is not."""
    job = _job(host, seed)
    job.slow = slower(seed % job.num_ranks, 1.2, since=SINCE)
    steps = job.steps(SINCE + MOST_STEPS)
    for num_slow in range(1, MOST_STEPS):
        if _verdict(steps[: SINCE + num_slow - 1]).ranks == (str(seed % job.num_ranks),):
            return num_slow
    return MOST_STEPS


def is_accused(host: Host, num_ranks: int, seed: int) -> bool:
    """Whether any rank of a healthy run is ever called a straggler."""
    steps = _job(host, seed, num_ranks).steps(NUM_STEPS)
    return any(_verdict(steps[:end]).state == "found" for end in range(1, NUM_STEPS + 1))


def _job(host: Host, seed: int, num_ranks: int = 4) -> Job:
    """Tokens vary, a quarter of the work goes with them, one step in a hundred takes threefold."""
    noise, stalls = host
    job = Job(num_ranks, noise, 0.01, tokens=_tokens, work_per_token=0.25, seed=seed)
    job.stalls = stalls
    return job


def _tokens(rng: random.Random, rank: int) -> float:
    return 1000 * rng.lognormvariate(0, 0.12)


def _verdict(steps: Sequence[Step]) -> Verdict:
    return straggler_verdict("trainer", steps[-KEPT_STEPS:], None)


def _named_row(host: Host, steps: Sequence[int]) -> Result:
    spread = {"p10": quantile(steps, 0.1), "p90": quantile(steps, 0.9)}
    noise, stalls = host
    taken = f" and {stalls:.0%} taken away" if stalls else ""
    name = f"simulated straggler of 1.2, {noise:.0%} noise{taken}, named after"
    return Result(name, median(steps), "steps", len(steps), spread, bar=Bar(5.0))


def _false_row(num_accused: int, cases: Sequence[object]) -> Result:
    low, high = share_interval(num_accused, len(cases))
    note = f"{num_accused} of {len(cases)} runs of {NUM_STEPS} steps"
    share = num_accused / len(cases)
    spread = {"low": low, "high": high}
    return Result("simulated healthy runs accused", share, "", len(cases), spread, note=note)


if __name__ == "__main__":
    report(measure)

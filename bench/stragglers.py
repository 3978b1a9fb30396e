"""The straggler verdict over recorded and simulated steps: how soon it comes, and how often wrong.

Recorded: jobs with a known truth on 2 cores at load 8 to 18, their steps as the agent
closed them (recorded_steps/NAME.json.gz). The limits of two witnesses were chosen with them.
Simulated: a rank is a fifth slower, or none is, while the ranks' own work varies from step to step,
or the host takes the CPU away from them.
bench/verdicts.py and bench/shared_host.py ask real jobs under a real agent.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from bench.estimates import median, quantile, share_interval
from bench.measurement import Bar, Result, report
from bench.simulated_steps import Job, slower
from dfx_agent.facts.layout import NO_LAYOUT, Layout, ProcessGroup, RankPosition
from dfx_agent.facts.steps import RankStep, RoleSteps, SchedTimes, Step
from dfx_agent.judge.straggler.judge import StragglerJudge, straggler_verdict
from dfx_agent.snapshot import Verdict
from dfx_agent.wire.job_description import RankRange

# standard deviation of a rank's work from step to step, and of what the host takes away from it
HOSTS = ((0.02, None), (0.05, None), (0.1, None), (0.02, 0.2))
Host = tuple[float, float | None]

NUM_RANKS = (2, 4)
NUM_STEPS = 500
SINCE = 100
MOST_STEPS = 40
KEPT_STEPS = 32  # by the agent
RECORDINGS = Path(__file__).resolve().parent / "recorded_steps"
FIRST_WINDOW = 20  # steps after which a slow rank may be expected to be named


class Recording(NamedTuple):
    """A job; ``slow_rank`` computes more than the others, None: nobody does."""

    name: str
    slow_rank: str | None
    layout: Layout
    steps: Sequence[Step]


def measure(*, quick: bool) -> list[Result]:
    num_runs = 1 if quick else 60
    with ProcessPoolExecutor() as pool:
        slow = {h: list(pool.map(named_after, [h] * num_runs, range(num_runs))) for h in HOSTS}
        cases = [(h, ranks, seed) for h in HOSTS for ranks in NUM_RANKS for seed in range(num_runs)]
        healthy = sum(pool.map(is_accused, *zip(*cases, strict=True), chunksize=4))
    return [
        *(_named_row(host, steps) for host, steps in slow.items()),
        _false_row(healthy, cases),
        *recorded_rows(list(map(recording, names()))),
    ]


def names() -> list[str]:
    return sorted(path.name.removesuffix(".json.gz") for path in RECORDINGS.glob("*.json.gz"))


def recording(name: str) -> Recording:
    document = json.loads(gzip.decompress((RECORDINGS / f"{name}.json.gz").read_bytes()))
    parts = [tuple(part) for part in document["parts"]]
    steps = [
        Step(
            number,
            begin,
            lost,
            {r: _rank_step(entry, parts) for r, entry in ranks.items()},
            num_steps,
        )
        for number, num_steps, begin, lost, ranks in document["steps"]
    ]
    layout = _one_group(len(steps[-1].ranks)) if document["is_layout_known"] else NO_LAYOUT
    return Recording(name, document["slow_rank"], layout, steps)


def _rank_step(of: Sequence[Any], parts: Sequence[tuple[str, str]]) -> RankStep:
    wall, waited, busy, times, tokens, seconds = of
    had = None if times is None else SchedTimes(times[0] * 1000, times[1] * 1000, times[2])
    by_part = dict(zip(parts, seconds, strict=True))
    return RankStep(
        wall, waited, by_part, None if tokens is None else {"all": tokens}, None, busy, had
    )


def _one_group(num_ranks: int) -> Layout:
    group = ProcessGroup("0", "", num_ranks, (RankRange(0, num_ranks - 1, 1),))
    return Layout({str(rank): RankPosition(rank) for rank in range(num_ranks)}, (group,))


def replayed(job: Recording) -> list[Verdict]:
    """After each step that the agent closed."""
    judge, num_ranks, found = StragglerJudge(), len(job.steps[-1].ranks), []
    for end in range(1, len(job.steps) + 1):
        stored = tuple(job.steps[max(0, end - KEPT_STEPS) : end])
        verdict = judge.verdict(RoleSteps("trainer", stored, 1.0, num_ranks, num_ranks, job.layout))
        assert verdict is not None
        found.append(verdict)
    return found


def recorded_rows(jobs: Sequence[Recording]) -> list[Result]:
    """Windows overlap: the interval is that of as many independent ones."""
    reported = [(job, replayed(job)) for job in jobs]
    healthy = [(job, verdicts) for job, verdicts in reported if job.slow_rank is None]
    slow = [(job, verdicts) for job, verdicts in reported if job.slow_rank is not None]
    wrong = [sum(bool(v.ranks) for v in verdicts) for _, verdicts in healthy]
    note = ", ".join(
        f"{job.name} {num} of {len(verdicts)}"
        for (job, verdicts), num in zip(healthy, wrong, strict=True)
    )
    of_another = sum(bool(set(v.ranks) - {job.slow_rank}) for job, vs in slow for v in vs)
    return [
        _share_row("healthy jobs: windows that accuse", sum(wrong), _num_windows(healthy), note),
        _share_row("slow jobs: windows that accuse another", of_another, _num_windows(slow), ""),
        *(_recall_row(job, verdicts) for job, verdicts in slow),
    ]


def _num_windows(told: Sequence[tuple[Recording, Sequence[Verdict]]]) -> int:
    return sum(len(verdicts) for _, verdicts in told)


def _recall_row(job: Recording, verdicts: Sequence[Verdict]) -> Result:
    due = verdicts[FIRST_WINDOW:]
    numbers = [step.step for step, v in zip(job.steps, verdicts, strict=True) if v.ranks]
    num_changes = sum(before.ranks != after.ranks for before, after in pairwise(verdicts))
    first = f"named at step {numbers[0]}" if numbers else "never named"
    num_right = sum(verdict.ranks == (job.slow_rank,) for verdict in due)
    note = f"{first}, {num_changes} changes"
    return _share_row(
        f"{job.name}: windows from the 20th on that name it", num_right, len(due), note
    )


def _share_row(name: str, number: int, of: int, note: str) -> Result:
    low, high = share_interval(number, of)
    return Result(f"recorded {name}", number / of, "", of, {"low": low, "high": high}, note=note)


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

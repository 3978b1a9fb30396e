"""Recorded jobs with a known truth on a full host of 2 cores; see bench/stragglers.py."""

from __future__ import annotations

import pytest

from bench.stragglers import names, recording, replayed

JOBS = [recording(name) for name in names()]
HEALTHY = [job for job in JOBS if job.slow_rank is None]
SLOW = [job for job in JOBS if job.slow_rank is not None]
SOON = {"demo_1.3", "demo_1.5"}  # those have to be named within 45 steps


@pytest.mark.parametrize("job", HEALTHY, ids=lambda job: job.name)
def test_a_healthy_job_on_a_full_host_accuses_nobody(job):
    assert not [verdict.summary for verdict in replayed(job) if verdict.ranks]


@pytest.mark.parametrize("job", SLOW, ids=lambda job: job.name)
def test_a_slow_rank_on_a_full_host_is_named_and_stays_named(job):
    verdicts = replayed(job)
    found = [verdict.ranks for verdict in verdicts]
    assert set(found) == {(), (job.slow_rank,)}
    first = found.index((job.slow_rank,))
    assert set(found[first:]) == {(job.slow_rank,)}, "found and lost again"
    if job.name in SOON:
        assert job.steps[first].step <= 45

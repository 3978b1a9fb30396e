"""The guest's hooks in real torch jobs: gloo processes, DDP, FSDP2, compiled graphs, late attach.

Each job of hook_jobs/ is started once; its checks run inside, on every rank, and are told here one
by one. $DFX_TEST_JOB_PYTHON runs the jobs with another interpreter, that is another torch.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")
sys.path.insert(0, str(Path(__file__).parent / "hook_jobs"))
from ranks import JOB_SECONDS, NUM_RANKS, assert_well, checks, started_once

pytestmark = pytest.mark.timeout(JOB_SECONDS + 60)  # the first check of a job waits for its end
DYING = "dying"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A function: what the checks of a job say; each job is started once."""
    return started_once(tmp_path_factory)


@pytest.mark.parametrize(
    ("job", "check"), [(job, check) for job in NUM_RANKS for check in checks(job) if job != DYING]
)
def test_job(results, job, check):
    assert_well(results(job), check)


@pytest.mark.parametrize("check", checks(DYING))
def test_dying(results, check):
    survivor, dead = results(DYING)[check]
    assert not survivor, survivor
    assert dead.startswith("not reached")

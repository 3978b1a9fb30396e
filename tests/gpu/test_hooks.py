"""The hooks' jobs on CUDA and NCCL: one device per rank, nothing waits for a device."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")
sys.path.insert(0, str(Path(__file__).parents[1] / "integration" / "hook_jobs"))
from ranks import Results, assert_well, checks, run_late, run_ranks  # noqa: E402 (after the visible skip)

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device: run tests/gpu on a machine that has one"
)

# dying is not among them: NCCL's watchdog ends the process, no collective raises
NUM_RANKS = {
    "plain_loop": 1,
    "manners": 1,
    "training": 2,
    "compiled": 2,
    "late": 2,
    "late_compiled": 2,
    "every_operation": 3,
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A function: what the checks of a job say; each job is started once."""
    known: dict[str, Results] = {}

    def of(job: str) -> Results:
        if torch.cuda.device_count() < NUM_RANKS[job]:
            pytest.skip(f"{job} needs {NUM_RANKS[job]} CUDA devices, one for each rank")
        if job not in known:
            folder = tmp_path_factory.mktemp(job)
            run = run_late if job.startswith("late") else run_ranks
            known[job] = run(job, NUM_RANKS[job], folder, DFX_TEST_DEVICE="cuda")
        return known[job]

    return of


@pytest.mark.parametrize(
    ("job", "check"), [(job, check) for job in NUM_RANKS for check in checks(job)]
)
def test_on_cuda(results, job, check):
    assert_well(results(job), check)


@pytest.mark.skip(reason="NCCL: a rank that loses a peer is ended by its watchdog; gloo's raises")
@pytest.mark.parametrize("check", checks("dying"))
def test_dying_on_cuda(check):
    raise AssertionError(check)

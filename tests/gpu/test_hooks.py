"""The hooks' jobs on CUDA and NCCL: one device per rank, nothing waits for a device."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")
sys.path.insert(0, str(Path(__file__).parents[1] / "integration" / "hook_jobs"))
from ranks import NUM_RANKS, Results, assert_well, checks, started_once  # noqa: E402 (after the visible skip)

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device: run tests/gpu on a machine that has one"
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A function: what the checks of a job say; each job is started once."""
    entry = started_once(tmp_path_factory, DFX_TEST_DEVICE="cuda")

    def of_devices(job: str) -> Results:
        if torch.cuda.device_count() < NUM_RANKS[job]:
            pytest.skip(f"{job} needs {NUM_RANKS[job]} CUDA devices, one for each rank")
        return entry(job)

    return of_devices


@pytest.mark.parametrize(
    ("job", "check"), [(job, check) for job in NUM_RANKS for check in checks(job) if job != "dying"]
)
def test_on_cuda(results, job, check):
    assert_well(results(job), check)


@pytest.mark.skip(reason="NCCL: a rank that loses a peer is ended by its watchdog; gloo's raises")
@pytest.mark.parametrize("check", checks("dying"))
def test_dying_on_cuda(check):
    raise AssertionError(check)

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
from ranks import Results, assert_well, checks, run_late, run_ranks


@pytest.fixture(scope="module")
def every_operation(tmp_path_factory) -> Results:
    return run_ranks("every_operation", 3, tmp_path_factory.mktemp("every_operation"))


@pytest.mark.parametrize("check", checks("every_operation"))
def test_every_operation(every_operation, check):
    assert_well(every_operation, check)


@pytest.fixture(scope="module")
def training(tmp_path_factory) -> Results:
    return run_ranks("training", 2, tmp_path_factory.mktemp("training"))


@pytest.mark.parametrize("check", checks("training"))
def test_training(training, check):
    assert_well(training, check)


@pytest.fixture(scope="module")
def dying(tmp_path_factory) -> Results:
    return run_ranks("dying", 2, tmp_path_factory.mktemp("dying"))


@pytest.mark.parametrize("check", checks("dying"))
def test_dying(dying, check):
    survivor, dead = dying[check]
    assert not survivor, survivor
    assert dead.startswith("not reached")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Results:
    return run_ranks("compiled", 2, tmp_path_factory.mktemp("compiled"))


@pytest.mark.parametrize("check", checks("compiled"))
def test_compiled(compiled, check):
    assert_well(compiled, check)


@pytest.fixture(scope="module")
def plain_loop(tmp_path_factory) -> Results:
    return run_ranks("plain_loop", 1, tmp_path_factory.mktemp("plain_loop"))


@pytest.mark.parametrize("check", checks("plain_loop"))
def test_plain_loop(plain_loop, check):
    assert_well(plain_loop, check)


@pytest.fixture(scope="module")
def manners(tmp_path_factory) -> Results:
    return run_ranks("manners", 1, tmp_path_factory.mktemp("manners"))


@pytest.mark.parametrize("check", checks("manners"))
def test_manners(manners, check):
    assert_well(manners, check)


@pytest.fixture(scope="module")
def late(tmp_path_factory) -> Results:
    return run_late("late", 2, tmp_path_factory.mktemp("late"))


@pytest.mark.parametrize("check", checks("late"))
def test_late(late, check):
    assert_well(late, check)


@pytest.fixture(scope="module")
def late_compiled(tmp_path_factory) -> Results:
    return run_late("late_compiled", 2, tmp_path_factory.mktemp("late_compiled"))


@pytest.mark.parametrize("check", checks("late_compiled"))
def test_late_compiled(late_compiled, check):
    assert_well(late_compiled, check)

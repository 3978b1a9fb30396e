"""A test that had to run again under .ci/run is named, and more than three of them fail the run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"
FLAKY = """
import pathlib, pytest
@pytest.mark.parametrize("n", range({}))
def test_flaky(n, tmp_path_factory):
    mark = pathlib.Path(__file__).with_name(f"mark{{n}}")
    is_second = mark.exists()
    mark.touch()
    assert is_second
"""


def run_flaky(folder: Path, num_flaky: int, *args: str, **changes: str):
    shutil.copy(CONFTEST, folder)
    (folder / "test_flaky.py").write_text(FLAKY.format(num_flaky))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args, "."]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env |= {"DFX_TEST_RERUNS": str(folder / "reruns.txt"), **changes}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=100
    )


@pytest.mark.parametrize(("num_flaky", "code"), [(3, 0), (4, 1)])
def test_more_than_three_reruns_fail_the_run_and_each_is_named(tmp_path, num_flaky, code):
    done = run_flaky(tmp_path, num_flaky, "-n", "2", PYTEST_ADDOPTS="--reruns 1")
    assert done.returncode == code, done.stdout
    assert done.stdout.count("DEFECT test_flaky.py::") == num_flaky
    assert done.stdout.count("E       assert False") == num_flaky, "why they failed"
    assert f"{num_flaky} passed" in done.stdout.splitlines()[-1]


def test_reruns_of_several_runs_of_pytest_count_together(tmp_path):
    for num_flaky, code in ((2, 0), (4, 1)):  # the first two pass at once the second time
        done = run_flaky(tmp_path, num_flaky, "--reruns", "1")
        assert done.returncode == code, done.stdout
    assert done.stdout.count("DEFECT test_flaky.py::") == 4


def test_without_the_variable_nothing_is_run_again(tmp_path):
    done = run_flaky(tmp_path, 1, DFX_TEST_RERUNS="")
    assert "1 failed" in done.stdout.splitlines()[-1]
    assert "DEFECT" not in done.stdout
    assert done.returncode == 1

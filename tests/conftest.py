"""What several tests share: private folders, free ports, the command line, real servers."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
CLI_TIMEOUT_SECONDS = 60.0

RunCli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def artifacts() -> Path:
    """Where a run leaves screenshots and logs for people: $DFX_TEST_ARTIFACTS."""
    folder = Path(os.environ.get("DFX_TEST_ARTIFACTS", ROOT / "tests" / "artifacts"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def dfx_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for segments of this test alone, in shared memory where there is some."""
    shared_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="dfx-test-", dir=shared_memory) as folder:
        monkeypatch.setenv("DFX_DIR", folder)
        yield Path(folder)


@pytest.fixture
def free_port() -> Callable[[], int]:
    """A function; each call returns a loopback TCP port that nobody listens on now."""

    def find() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    return find


@pytest.fixture(scope="session")
def run_cli() -> RunCli:
    """``run_cli("ps", "--json")`` runs the command line in a process of its own."""

    def run(
        *args: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float = CLI_TIMEOUT_SECONDS,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "dfx_agent", *args],
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout_seconds,
            cwd=cwd,
            env=env,
        )

    return run


def _program(package: str, *names: str) -> str:
    """The first of ``names`` on PATH; skips the test, and says what to install, if none is."""
    for name in names:
        if path := shutil.which(name):
            return path
    pytest.skip(f"no {names[0]} on PATH; Debian: apt-get install {package}")


@pytest.fixture(scope="session")
def prometheus_binary() -> str:
    return _program("prometheus", "prometheus")


@pytest.fixture(scope="session")
def promtool_binary() -> str:
    return _program("prometheus", "promtool")


@pytest.fixture(scope="session")
def alertmanager_binary() -> str:
    return _program("prometheus-alertmanager", "prometheus-alertmanager", "alertmanager")


@pytest.fixture(scope="session")
def chromium_binary() -> str:
    return _program("chromium", "chromium", "chromium-browser", "google-chrome")


# Jobs that train on every core for as long as they are watched: two of these files at a time, not
# one per worker. They take longest and come first.
TRAINING = {
    "test_boards.py": "training, one",
    "test_demo_learning.py": "training, one",
    "test_page_live.py": "training, one",
    "test_alertmanager.py": "training, the other",
    "test_async_demo.py": "training, the other",
    "test_training_health.py": "training, the other",
    "test_prometheus.py": "training, the other",
}
THEN = ("test_hooks.py", "test_attach.py", "test_page_scripted.py", "test_page_verdicts.py")
TURNS = [*TRAINING, *THEN]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The guest's tests first, then what takes long; each worker of pytest-xdist keeps this order.

    The guest's tests need this thread's contexts untouched: once, late in a whole run, tasks of an
    event loop shared one context. Seen on 2026-11-21, not reproduced, cause unknown.

    Integration tests, many processes on a machine shared with others, may fail once; the second
    run is listed in the summary.
    """
    for item in items:
        if item.path.parent.name == "integration":
            item.add_marker(pytest.mark.flaky(reruns=1))

    def turn(item: pytest.Item) -> int:
        if item.path.parent.name == "shim":
            return -1
        return TURNS.index(item.path.name) if item.path.name in TURNS else len(TURNS)

    items.sort(key=turn)


def worker_group(nodeid: str) -> str:
    """What one worker runs as a whole: a file, files that train, or the checks of one job."""
    file, _, test = nodeid.partition("::")
    name = file.rpartition("/")[2]
    if name == "test_hooks.py":  # [job-check]
        return f"{file} {test.partition('[')[2].partition('-')[0]}"
    return TRAINING.get(name, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """By ``worker_group``: xdist_group marks do nothing under pytest 9.2 (pytest-xdist #1386)."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return worker_group(nodeid)

    return ByGroup(config, log)

"""What several tests share: private folders, free ports, the command line, real servers."""

import atexit
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

try:
    import hypothesis
except ImportError:  # where the real frameworks are installed
    hypothesis = None

ROOT = Path(__file__).resolve().parent.parent
# steps of tests are short, and machines of tests busy: a guest would soon record less
os.environ.setdefault("DFX_MAX_OVERHEAD", "0")
os.environ.setdefault("DFX_LEDGER_EVERY_STEP", "1")
# runs of tests are not the history of whoever runs the tests
os.environ.setdefault("DFX_HISTORY_DIRECTORY", "off")
os.environ["XDG_STATE_HOME"] = STATE_HOME = tempfile.mkdtemp(prefix="dfx-test-state-")
atexit.register(shutil.rmtree, STATE_HOME, ignore_errors=True)
CLI_TIMEOUT_SECONDS = 60.0

# `make test ARGS="--hypothesis-profile thorough"`: ten times the examples of every property
THOROUGH, TIMES = "thorough", 10
if hypothesis is not None:
    hypothesis.settings.register_profile(THOROUGH)

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
    "test_pipeline_board.py": "training, the other",
}
THEN = ("test_hooks.py", "test_attach.py", "test_page_scripted.py", "test_page_verdicts.py")
TURNS = [*TRAINING, *THEN]
# Each test starts processes of its own: any worker may run any of them, last of all.
INDEPENDENT = {
    "test_benches.py",
    "test_delivery.py",
    "test_diagnose.py",
    "test_faults.py",
    "test_injection.py",
    "test_two_nodes.py",
}


def is_slow(item: pytest.Item) -> bool:
    """True if `make test` leaves the test to `make test-all`.

    A test of tests/integration starts processes or servers: one is slow unless it is marked
    ``smoke``. A test elsewhere is slow only if it is marked so.
    """
    if "integration" in item.path.parts[len(ROOT.parts) :]:
        return item.get_closest_marker("smoke") is None
    return item.get_closest_marker("slow") is not None


@pytest.hookimpl(tryfirst=True)  # before pytest selects by ``-m``
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The guest's tests first, then what takes long; each worker of pytest-xdist keeps this order.

    The guest's tests need this thread's contexts untouched: once, late in a whole run, tasks of an
    event loop shared one context. Seen on 2026-11-21, not reproduced, cause unknown.
    """

    def turn(item: pytest.Item) -> int:
        if item.path.parent.name == "shim":
            return -1
        if item.path.name in TURNS:
            return TURNS.index(item.path.name)
        return len(TURNS) + (item.path.name in INDEPENDENT)

    items.sort(key=turn)
    for item in items:
        if is_slow(item):
            item.add_marker(pytest.mark.slow)
    is_thorough = config.getoption("hypothesis_profile", None) == THOROUGH
    _prepare_properties(items, TIMES if is_thorough else 1)


def _prepare_properties(items: list[pytest.Item], times: int) -> None:
    """Properties have no deadline, which load would break, and so many times their examples.

    A profile of hypothesis changes nothing that a test asks for itself.
    """
    properties = {}
    for item in items:
        test = getattr(item, "obj", None)
        test = getattr(test, "__func__", test)
        if hasattr(test, "_hypothesis_internal_use_settings"):
            properties[id(test)] = test
            if times > 1:
                item.add_marker(pytest.mark.timeout(300 * times))
    for test in properties.values():
        asked = test._hypothesis_internal_use_settings
        test._hypothesis_internal_use_settings = hypothesis.settings(
            asked,
            deadline=None,
            max_examples=asked.max_examples * times,
            suppress_health_check={*asked.suppress_health_check, hypothesis.HealthCheck.too_slow},
        )


RERUNS = "DFX_TEST_RERUNS"
MAX_RERUNS = 3


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Under .ci/run a test that failed once is noted in $DFX_TEST_RERUNS; more than 3 fail the run.

    One file collects the tests of all runs of pytest.
    """
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get(RERUNS) or reporter is None or hasattr(session.config, "workerinput"):
        return
    with open(os.environ[RERUNS], "a", encoding="utf-8") as file:
        file.writelines(f"{report.nodeid}\n" for report in reporter.stats.get("rerun", ()))
    if exitstatus == pytest.ExitCode.OK and len(_rerun_tests()) > MAX_RERUNS:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if tests := _rerun_tests():
        terminalreporter.section(f"DEFECTS: {len(tests)} of at most {MAX_RERUNS} reruns", red=True)
        for test in tests:
            terminalreporter.line(f"DEFECT {test} failed and was run again")
        for report in terminalreporter.stats.get("rerun", ()):
            terminalreporter.line(f"The first failure of {report.nodeid}:", red=True)
            terminalreporter.line("\n".join(report.longreprtext.splitlines()[-30:]))


def _rerun_tests() -> list[str]:
    """Test ids of all runs of pytest under this .ci/run."""
    path = Path(os.environ.get(RERUNS, ""))
    return sorted(set(path.read_text("utf-8").splitlines())) if path.is_file() else []


def worker_group(nodeid: str) -> str:
    """What one worker runs as a whole: a file, files that train, the checks of one job, a test."""
    file, _, test = nodeid.partition("::")
    name = file.rpartition("/")[2]
    if name == "test_hooks.py":  # [job-check]
        return f"{file} {test.partition('[')[2].partition('-')[0]}"
    return nodeid if name in INDEPENDENT else TRAINING.get(name, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """By ``worker_group``: xdist_group marks do nothing under pytest 9.2 (pytest-xdist #1386)."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return worker_group(nodeid)

    return ByGroup(config, log)

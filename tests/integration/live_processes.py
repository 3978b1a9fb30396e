"""Real processes of dfx-agent and of jobs, and what an agent answers over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
# sys.path instead of PYTHONPATH: what the job can import stays the job's own affair
_ON_PATH = f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
DFX_AGENT = [
    sys.executable,
    "-c",
    _ON_PATH + "import dfx_agent.commands as c; sys.exit(c.main())",
]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
DEMO = [
    "-m",
    "dfx_agent.commands.demo.tiny_grpo",
    "--prompts-per-rank",
    "2",
    "--checkpoint-every",
    "0",
]


def job_environment(**changes: str) -> dict[str, str]:
    """Ours without PYTHONPATH and DFX_* but DFX_DIR, no budget of the guest, plus ``changes``."""
    stored = {
        name: value
        for name, value in os.environ.items()
        if name == "DFX_DIR" or not name.startswith(("DFX_", "PYTHONPATH"))
    }
    # steps of tests are short, and machines of tests busy: the default budget would be spent
    return {**stored, "OMP_NUM_THREADS": "1", "DFX_MAX_OVERHEAD": "0", **changes}


def demo_environment(**changes: str) -> dict[str, str]:
    """What the demo needs to be importable without being installed."""
    return job_environment(PYTHONPATH=str(ROOT), **changes)


def unused_port() -> int:
    """A loopback TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def patience() -> float:
    """How many processes share a core now: so much longer everything may take; at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def until(look: Callable[[], Any], what: str, seconds: float = 30.0) -> Any:
    """What ``look`` returns as soon as it is true; AssertionError after ``seconds``.

    On a machine of its own: where processes share its cores, after as much longer.
    """
    begin = time.monotonic()
    while not (seen := look()):
        waited = time.monotonic() - begin
        assert waited < seconds * patience(), f"not within {waited:.0f} s: {what}"
        time.sleep(0.05)
    return seen


class Started:
    """A process with everything it starts; its output goes to files."""

    def __init__(
        self, command: Sequence[str], folder: Path, env: dict[str, str], **options: Any
    ) -> None:
        self._output = folder / f"{time.monotonic_ns()}.out"
        self._errors = self._output.with_suffix(".err")
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self.popen = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
                **options,
            )
        self.pid = self.popen.pid
        self._seen: set[psutil.Process] = {psutil.Process(self.pid)}

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def descendants(self) -> list[psutil.Process]:
        """All that it has started and that lives; remembered, so that ``end`` finds them."""
        try:
            found = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            found = []
        self._seen.update(found)
        return found

    def send(self, number: int) -> None:
        self.descendants()
        os.kill(self.pid, number)

    def wait(self, seconds: float = 60.0) -> int:
        """Its exit code; ``seconds`` as in ``until``."""
        until(lambda: self.popen.poll() is not None, "its end", seconds)
        return int(self.popen.returncode)

    def end(self) -> None:
        """Kill what is left of it."""
        self.descendants()
        for process in self._seen:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.popen.wait(10)


@contextmanager
def started(
    command: Sequence[str], folder: Path, env: dict[str, str] | None = None, **options: Any
) -> Iterator[Started]:
    """``command`` running; nothing of it lives afterwards."""
    process = Started(command, folder, env or job_environment(), **options)
    try:
        yield process
    finally:
        process.end()


class LiveAgent:
    """A client of the agent that serves on ``port``."""

    def __init__(self, process: Started, port: int) -> None:
        self.process = process
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, accept: str = "*/*") -> str:
        request = urllib.request.Request(self.url + path, headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.read().decode()

    def json(self, path: str) -> Any:
        return json.loads(self.get(path))

    def snapshot(self) -> dict[str, Any]:
        return self.json("/api/v1/snapshot")

    def ranks(self) -> dict[str, dict[str, Any]]:
        """Rows by rank label, of all runs (a test has one)."""
        return {row["rank"]: row for run in self.snapshot()["runs"] for row in run["ranks"]}

    def answers(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.get("/readyz"))
        return False

    def wait_until_ready(self) -> None:
        def look() -> bool:
            assert self.process.popen.poll() is None, self.process.errors
            return self.answers()

        until(look, f"agent on port {self.port} is ready")

    def kill(self) -> None:
        """As the kernel does when memory runs out."""
        self.process.send(signal.SIGKILL)
        self.process.wait()


@contextmanager
def serving(
    folder: Path, port: int, *, prefix: Sequence[str] = (), env: dict[str, str] | None = None
) -> Iterator[LiveAgent]:
    """A real ``dfx-agent serve`` on ``port``; ``prefix`` runs it under another program."""
    command = [*prefix, *DFX_AGENT, "serve", "--listen", f"127.0.0.1:{port}"]
    with started(command, folder, env) as process:
        agent = LiveAgent(process, port)
        agent.wait_until_ready()
        yield agent


@contextmanager
def running(
    folder: Path, port: int, command: Sequence[str], env: dict[str, str] | None = None
) -> Iterator[LiveAgent]:
    """``command`` under a real ``dfx-agent run`` that serves on ``port``."""
    run = [*DFX_AGENT, "run", "--listen", f"127.0.0.1:{port}", "--run", "it", "--", *command]
    with started(run, folder, env) as process:
        agent = LiveAgent(process, port)
        agent.wait_until_ready()
        yield agent

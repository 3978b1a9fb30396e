"""Starts the processes of the pipeline and always ends all of them.

dfx-agent run -- python -m examples.async_rl --steps 100 --fault slow_replica:1:3
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from dfx_agent.commands.demo.faults import Fault, FaultError
from examples.async_rl import faults, truth
from examples.async_rl.faults import GRAMMAR, NUM_RANKS, NUM_REPLICAS

POLL_SECONDS = 0.2
TRUTH_EVERY_SECONDS = 1.0
# the file grows with the run: limits the share of this process's time that goes into writing it
MAX_TRUTH_SHARE = 0.02
GRACE_SECONDS = 5.0
_INTERRUPTED = 128 + signal.SIGINT


class Stopped(Exception):  # noqa: N818 (not an error: the user asked for it)
    """A signal asked this process to end."""


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 trained to the end, 1 a process failed, 2 wrong use, 130 interrupted."""
    options = _parse(arguments)
    try:
        parsed = faults.parse(options.fault)
    except FaultError as error:
        _fail(str(error))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    with tempfile.TemporaryDirectory(prefix="async_rl_") as folder:
        pipeline = Pipeline(options, Path(folder))
        try:
            pipeline.start()
            return _watch(pipeline, options, parsed)
        except Stopped:
            return _INTERRUPTED
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            pipeline.stop()
            if options.truth:
                truth.write(options.truth, parsed, pipeline.truth_folder)


class Pipeline:
    """The processes of one run; only their output remains afterwards."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = options
        self._store = folder / "store"
        self.truth_folder = folder / "truth"
        self.truth_folder.mkdir()
        self._learners: dict[str, subprocess.Popen[bytes]] = {}
        self._others: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Open all sockets before any process starts: early requests wait in the backlog."""
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(NUM_REPLICAS + 1)]
        urls = [f"http://127.0.0.1:{listening.getsockname()[1]}" for listening in sockets]
        *servers, orchestrator = urls
        to_servers = [word for url in servers for word in ("--server", url)]
        for replica, listening in enumerate(sockets[:-1]):
            server = self._child("server", ["--replica", str(replica)], listening)
            self._others[f"rollout server {replica}"] = server
        self._others["orchestrator"] = self._child("orchestrator", to_servers, sockets[-1])
        for listening in sockets:
            listening.close()
        shared = [*to_servers, "--orchestrator", orchestrator, "--store", str(self._store)]
        shared += ["--steps", str(self._options.steps)]
        shared += ["--learning-rate", str(self._options.learning_rate)]
        for rank in range(NUM_RANKS):
            place = ["--rank", str(rank), "--world-size", str(NUM_RANKS)]
            self._learners[f"learner rank {rank}"] = self._child("learner", [*place, *shared])

    def failed(self) -> str | None:
        """Message about a process that ended unexpectedly."""
        ended = {name: child.poll() for name, child in self._others.items()}
        # a learner may end normally
        ended |= {name: child.poll() or None for name, child in self._learners.items()}
        codes = ((name, code) for name, code in ended.items() if code is not None)
        return next((f"{name} ended with code {code}" for name, code in codes), None)

    def is_over(self) -> bool:
        return all(child.poll() == 0 for child in self._learners.values())

    def stop(self) -> None:
        """End the learners first, then the servers. Kill processes that do not end in time."""
        for children in (self._learners, self._others):
            for child in children.values():
                child.terminate()
            deadline = time.monotonic() + GRACE_SECONDS
            for child in children.values():
                try:
                    child.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()

    def _child(
        self, module: str, arguments: list[str], listening: socket.socket | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a child in a new session: only this process receives Ctrl-C and ends the children.

        The child's standard input closes when this process ends; the child then ends too.
        """
        command = [sys.executable, "-m", f"examples.async_rl.{module}", *arguments]
        command += ["--seed", str(self._options.seed)]
        command += [word for spec in self._options.fault for word in ("--fault", spec)]
        if self._options.truth:
            command += ["--truth-folder", str(self.truth_folder)]
        descriptors = [listening.fileno()] if listening else []
        command += [word for fd in descriptors for word in ("--socket", str(fd))]
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            env={"OMP_NUM_THREADS": "1", **os.environ},
            pass_fds=descriptors,
            start_new_session=True,
        )


def _watch(pipeline: Pipeline, options: argparse.Namespace, parsed: tuple[Fault, ...]) -> int:
    """Wait until the learners have ended or a process failed; returns the exit code."""
    next_truth = 0.0
    while not pipeline.is_over():
        if failure := pipeline.failed():
            print(f"async_rl: {failure}", file=sys.stderr)
            return 1
        if options.truth and time.monotonic() >= next_truth:
            begin_seconds = time.monotonic()
            truth.write(options.truth, parsed, pipeline.truth_folder)
            taken_seconds = time.monotonic() - begin_seconds
            pause_seconds = max(TRUTH_EVERY_SECONDS, taken_seconds / MAX_TRUTH_SHARE)
            next_truth = time.monotonic() + pause_seconds
        time.sleep(POLL_SECONDS)
    return 0


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise Stopped


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = _Parser(
        prog="async_rl",
        description="Asynchronous GRPO on CPU: two rollout servers, an orchestrator, two learners.",
        epilog="example: python -m examples.async_rl --fault slow_replica:1:3",
    )
    add = parser.add_argument
    add("--steps", type=_positive(int), default=1000, metavar="N", help="default %(default)s")
    add("--seed", type=int, default=0, metavar="N", help="default %(default)s")
    add(
        "--learning-rate",
        type=_positive(float),
        default=2e-4,
        metavar="RATE",
        help="default %(default)s",
    )
    add(
        "--fault",
        action="append",
        default=[],
        metavar="SPEC",
        help=f"make something go wrong, may be repeated: {', '.join(GRAMMAR.values())}; "
        "STEP is the first step with the fault, default 10",
    )
    add("--truth", type=Path, metavar="FILE", help="write the real effect of the faults as JSON")
    return parser.parse_args(arguments)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _fail(f"{message}; see --help")


def _fail(message: str) -> NoReturn:
    print(f"async_rl: {message}", file=sys.stderr)
    sys.exit(2)


def _positive(convert: type[int | float]) -> Callable[[str], float]:
    def read(word: str) -> float:
        value = convert(word)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"must be above 0, not {word}")
        return value

    read.__name__ = "number"
    return read


if __name__ == "__main__":
    sys.exit(main())

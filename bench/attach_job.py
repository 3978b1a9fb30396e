"""``dfx-agent attach`` to a running 2-rank torchrun DDP job and away again, many times.

Latency is from the start of the command to the first event of every rank in its segment, Python's
own start included. The command finds compiled files, as pip leaves them, whatever this environment
says of writing them: one cycle before the others makes them. The job writes when each of its steps
ended: how long the longest step took while the guest came or went says how long the job stood still
at most.
"""

from __future__ import annotations

import itertools
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.estimates import bootstrap_interval, median
from bench.measurement import Bar, Baseline, Result, of_samples, report
from bench.rounds import TORCHRUN
from bench.served_agent import running
from dfx_agent.wire import SegmentError, SegmentReader

NUM_RANKS = 2
_NUM_CYCLES = 60
_APART_SECONDS, _WITH_GUEST_SECONDS = 1.0, 1.0
_START_SECONDS, _LEAVE_SECONDS = 90.0, 30.0
_POLL_SECONDS = 0.002
_MAX_FREEZE_MS, _MAX_LATENCY_SECONDS = 100.0, 1.0


@dataclass
class _Cycles:
    """Seconds; steps are those of all ranks, by what the guest was doing when they ended."""

    latency: list[float] = field(default_factory=list)
    apart: list[float] = field(default_factory=list)
    coming: list[float] = field(default_factory=list)
    going: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    ratios_after: list[float] = field(default_factory=list)


class _Job:
    """The launcher and the files in which its ranks write their steps."""

    def __init__(self, launcher: subprocess.Popen[bytes], steps: str) -> None:
        self.pid = launcher.pid
        self._launcher = launcher
        self._steps = [Path(f"{steps}.{rank}") for rank in range(NUM_RANKS)]

    def is_training(self) -> bool:
        if self._launcher.poll() is not None:
            raise RuntimeError(f"the job ended with {self._launcher.returncode}")
        return all(path.exists() and path.stat().st_size > 8 * 100 for path in self._steps)

    def steps(self, begin: float, end: float) -> list[float]:
        """Durations of the steps of all ranks that ended within these monotonic seconds."""
        found = []
        for path in self._steps:
            data = path.read_bytes()
            times = [t / 1e9 for t in struct.unpack(f"{len(data) // 8}q", data)]
            pairs = itertools.pairwise(times)
            found += [after - before for before, after in pairs if begin <= after < end]
        return found


def measure(*, quick: bool) -> list[Result]:
    cycles = _Cycles()
    shared_memory = tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm")
    with shared_memory as folder, _job(folder) as job:
        _until(job.is_training, _START_SECONDS)
        _cycle(job, folder, _Cycles())
        for _ in range(1 if quick else _NUM_CYCLES):
            _cycle(job, folder, cycles)
        job.is_training()
    return _rows(cycles)


@contextmanager
def _job(folder: str) -> Iterator[_Job]:
    steps = os.path.join(folder, "steps")
    command = [*TORCHRUN, str(NUM_RANKS), "-m", "bench.attached_training"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "BENCH_STEPS": steps}
    with running(command, env=env, stderr=subprocess.DEVNULL) as launcher:
        yield _Job(launcher, steps)


def _cycle(job: _Job, folder: str, cycles: _Cycles) -> None:
    segments = tempfile.mkdtemp(prefix="segments-", dir=folder)
    command = [sys.executable, "-m", "dfx_agent", "attach", "--pid", str(job.pid)]
    command += ["--listen", "127.0.0.1:0"]
    time.sleep(_APART_SECONDS)
    begin = time.monotonic()
    env = {**os.environ, "DFX_DIR": segments, "PYTHONPYCACHEPREFIX": os.path.join(folder, "cache")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    with running(command, env=env, stdout=subprocess.DEVNULL) as agent:
        _until(lambda: _num_recording(segments) == NUM_RANKS, _START_SECONDS)
        came = time.monotonic()
        time.sleep(_WITH_GUEST_SECONDS)
        leaving = time.monotonic()
        agent.send_signal(signal.SIGINT)
        agent.wait(_LEAVE_SECONDS)
    gone = time.monotonic()
    time.sleep(_APART_SECONDS)
    cycles.latency.append(came - begin)
    before = job.steps(begin - _APART_SECONDS, begin)
    cycles.apart += before
    cycles.coming += job.steps(begin, came + _WITH_GUEST_SECONDS / 4)
    cycles.going += job.steps(leaving, gone)
    cycles.ratios.append(
        median(job.steps(came + _WITH_GUEST_SECONDS / 4, leaving)) / median(before)
    )
    cycles.ratios_after.append(median(job.steps(gone, gone + _APART_SECONDS)) / median(before))


def _num_recording(segments: str) -> int:
    """Segments that hold an event."""
    num_recording = 0
    for path in Path(segments).glob("*.seg"):
        try:
            with closing(SegmentReader(str(path))) as segment:
                num_recording += bool(segment.poll(1))
        except SegmentError:
            continue
    return num_recording


def _until(is_so: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {seconds:g} s")
        time.sleep(_POLL_SECONDS)


def _rows(cycles: _Cycles) -> list[Result]:
    alone = Baseline("longest without attach", max(cycles.apart) * 1e3)
    step = f"a step takes {median(cycles.apart) * 1e3:.1f} ms"
    rows = [
        of_samples("attach to first event of all ranks, p50", cycles.latency, "s", note=step),
        of_samples(
            "attach to first event of all ranks, p95",
            cycles.latency,
            "s",
            q=0.95,
            bar=Bar(_MAX_LATENCY_SECONDS),
        ),
    ]
    for name, steps in (("attaching", cycles.coming), ("detaching", cycles.going)):
        longest = [duration * 1e3 for duration in steps]
        bar = Bar(_MAX_FREEZE_MS)
        rows.append(
            of_samples(f"longest step while {name}", longest, "ms", q=1.0, baseline=alone, bar=bar)
        )
    for name, ratios in (("attached", cycles.ratios), ("detached again", cycles.ratios_after)):
        low, high = bootstrap_interval(median, ratios)
        spread = {"low": low, "high": high}
        rows.append(Result(f"step time, {name} / before", median(ratios), "x", len(ratios), spread))
    return rows


if __name__ == "__main__":
    report(measure)

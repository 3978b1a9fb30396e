"""Healthy jobs of many kinds at once on a loaded machine: what is said of them, what it costs.

    python -m bench.mixed_jobs --seconds 900 --load 20 --out mixed.json
    python -m bench.mixed_jobs --jobs ddp,pipeline --way attach

Each job of bench/mixed runs under ``dfx-agent run``, or alone with ``dfx-agent attach`` to it, and
once more without us. While it runs its agent is asked every two seconds. What is counted: verdicts
that found something and incidents that warn or page (each one false, since the jobs are healthy),
one signal that moved (told as context, pages nobody), answers that did not come or told of a
reading that stands still, lines on the job's stderr that the job alone does not write, and
parameters that differ from the job's without us at the same step.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from bench.served_agent import running

HERE = Path(__file__).resolve().parent
FRAMEWORKS = HERE.parent / ".venv-frameworks" / "bin" / "python"
NUM_RANKS = {"compiled": 1}  # the others have two
NEEDS_FRAMEWORKS = ("hf_trainer", "trl_grpo")
JOBS = (
    *("ddp", "fsdp2", "pipeline", "remote_rollouts", "compiled", "forks_threads"),
    *NEEDS_FRAMEWORKS,
)
ASK_SECONDS, ANSWER_SECONDS = 2.0, 30.0
START_SECONDS, END_SECONDS = 600.0, 300.0
NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass
class Seen:
    """Of one job under one way of observing it."""

    job: str
    way: str
    num_answers: int = 0
    num_unanswered: int = 0
    num_blind: int = 0
    num_steps: int = 0
    found: Counter[str] = field(default_factory=Counter)
    noted: Counter[str] = field(default_factory=Counter)  # context: pages nobody
    states: Counter[str] = field(default_factory=Counter)
    odd_lines: list[str] = field(default_factory=list)
    num_compared: int = 0
    num_different: int = 0
    exit_code: int | None = None


class Job:
    """One job of bench/mixed in a process group of its own, with the files that it writes."""

    def __init__(self, name: str, way: str, folder: Path, stack: ExitStack) -> None:
        self.seen = Seen(name, way)
        self.out = folder / f"{name}-{way}"
        self.out.mkdir()
        self.segments = self.out / "segments"
        self._stack = stack
        self._env = _environment(self.out, self.segments)
        command = _command(name)
        if way == "run":
            command = [*_agent("run", "--listen", "127.0.0.1:0"), "--", *command]
        self.process = self._start(command, "job")
        self._agent_errors = "job"

    def attach(self) -> None:
        """As a user would, once it trains."""
        pid = str(self.process.pid)
        self._start(_agent("attach", "--pid", pid, "--listen", "127.0.0.1:0"), "agent")
        self._agent_errors = "agent"

    def _start(self, command: list[str], name: str) -> subprocess.Popen[bytes]:
        errors = self._stack.enter_context((self.out / f"{name}.err").open("wb"))
        reported = self._stack.enter_context((self.out / f"{name}.out").open("wb"))
        # as from a terminal of its own: Linux shares processors by session (sched_autogroup)
        own = {"cwd": HERE.parent, "start_new_session": True}
        context = running(command, env=self._env, stdout=reported, stderr=errors, **own)
        return self._stack.enter_context(context)

    def url(self) -> str | None:
        """Where its agent serves, once it says so."""
        text = "".join(
            (self.out / f"{self._agent_errors}.{end}").read_text(errors="replace")
            for end in ("err", "out")
        )
        found = re.search(r"page (http://[0-9.]+:\d+)/", text)
        return found and found.group(1)

    def num_steps(self) -> int:
        """Steps that rank 0 has ended, to the nearest 20."""
        return max(self.hashes(0), default=0)

    def hashes(self, rank: int) -> dict[int, str]:
        path = self.out / str(rank)
        lines = path.read_text().splitlines() if path.exists() else []
        return {int(step): value for step, value in (line.split() for line in lines)}

    def end(self) -> None:
        (self.out / "end").touch()
        try:
            self.seen.exit_code = self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.seen.exit_code = None
        self.seen.num_steps = self.num_steps()

    def error_lines(self) -> set[str]:
        """Numbers left out, without ours."""
        text = (self.out / "job.err").read_text(errors="replace")
        lines = (line.strip() for line in text.splitlines())
        return {NUMBER.sub("#", line) for line in lines if line and "dfx-agent:" not in line}


def _environment(out: Path, segments: Path) -> dict[str, str]:
    stored = {key: value for key, value in os.environ.items() if not key.startswith("DFX_")}
    path = os.pathsep.join([str(HERE.parent), *filter(None, [stored.get("PYTHONPATH")])])
    mixed = {"MIXED_OUT": str(out), "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    return {**stored, **mixed, "DFX_DIR": str(segments), "DFX_LINGER_SECONDS": "0"}


def _command(name: str) -> list[str]:
    python = str(FRAMEWORKS) if name in NEEDS_FRAMEWORKS else sys.executable
    num_ranks = NUM_RANKS.get(name, 2)
    module = f"bench.mixed.{name}"
    if num_ranks == 1:
        return [python, "-m", module]
    launcher = [python, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, "--nproc-per-node", str(num_ranks), "-m", module]


def _agent(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dfx_agent", *arguments]


def _ask(job: Job, url: str, client: httpx.Client) -> None:
    seen = job.seen
    try:
        ready = client.get(f"{url}/readyz")
        snapshot = client.get(f"{url}/api/v1/snapshot").raise_for_status().json()
    except httpx.HTTPError:
        seen.num_unanswered += job.process.poll() is None
        return
    seen.num_answers += 1
    seen.num_blind += ready.status_code != httpx.codes.OK
    for run in snapshot["runs"]:
        for verdict in run["verdicts"]:
            seen.states[f"{verdict['kind']}: {verdict['state']}"] += 1
            if verdict["state"] == "found":
                seen.found[f"{verdict['kind']}: {verdict['summary']}"] += 1
        for incident in run["incidents"]:
            reported = seen.noted if incident["severity"] == "info" else seen.found
            reported[f"{incident['severity']} {incident['kind']}: {incident['summary']}"] += 1


def _is_starting(job: Job) -> bool:
    return job.num_steps() == 0 and job.process.poll() is None


def _follow(job: Job, stop: threading.Event) -> None:
    """Ask the job's agent until told to stop; attach first where that is the way."""
    while _is_starting(job) and not stop.wait(ASK_SECONDS):
        pass
    if job.seen.way == "attach":
        job.attach()
    with httpx.Client(timeout=ANSWER_SECONDS) as client:
        while not stop.wait(ASK_SECONDS):
            url = job.url()
            if url:
                _ask(job, url, client)


def _together(names: list[str], way: str, seconds: float, folder: Path) -> dict[str, Job]:
    """All jobs at once for so long, each followed by a thread."""
    with ExitStack() as stack:
        jobs = {name: Job(name, way, folder, stack) for name in names}
        stop = threading.Event()
        threads = [threading.Thread(target=_follow, args=(job, stop)) for job in jobs.values()]
        for thread in threads if way != "alone" else ():
            thread.start()
        deadline = time.monotonic() + START_SECONDS
        while any(map(_is_starting, jobs.values())) and time.monotonic() < deadline:
            time.sleep(ASK_SECONDS)
        time.sleep(seconds)
        stop.set()
        for thread in threads if way != "alone" else ():
            thread.join()
        for job in jobs.values():
            job.end()
    return jobs


def _compare(job: Job, alone: Job) -> None:
    for rank in range(NUM_RANKS.get(job.seen.job, 2)):
        ours, theirs = job.hashes(rank), alone.hashes(rank)
        common = ours.keys() & theirs.keys()
        job.seen.num_compared += len(common)
        job.seen.num_different += sum(ours[step] != theirs[step] for step in common)
    job.seen.odd_lines = sorted(job.error_lines() - alone.error_lines())


def main() -> int:
    options = _parse()
    names = options.jobs.split(",")
    seen = []
    with tempfile.TemporaryDirectory(prefix="dfx-mixed-") as name, ExitStack() as stack:
        folder = Path(options.keep or name)
        folder.mkdir(parents=True, exist_ok=True)
        num_busy = max(options.load - sum(NUM_RANKS.get(job, 2) for job in names), 0)
        for _ in range(num_busy):
            busy = [sys.executable, "-c", "while True: pass"]
            stack.enter_context(running(busy, start_new_session=True))
        alone = _together(names, "alone", options.seconds / 5, folder)
        for way in options.way.split(","):
            for job in _together(names, way, options.seconds, folder).values():
                _compare(job, alone[job.seen.job])
                seen.append(job.seen)
                print(_line(job.seen), flush=True)
    if options.out:
        options.out.write_text(json.dumps([vars(item) for item in seen], indent=1) + "\n")
    return int(any(item.found or item.num_different or item.odd_lines for item in seen))


def _line(seen: Seen) -> str:
    parts = (
        f"{seen.job} ({seen.way}): {seen.num_steps} steps, exit code {seen.exit_code}",
        f"{seen.num_answers} answers, {seen.num_unanswered} missing, {seen.num_blind} not ready",
        f"{seen.num_different} of {seen.num_compared} hashes differ",
        f"found: {dict(seen.found) or 'nothing'}, noted: {dict(seen.noted) or 'nothing'}",
        *(f"stderr: {line}" for line in seen.odd_lines),
        f"states: {dict(seen.states)}",
    )
    return "\n    ".join(parts)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.mixed_jobs", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=900.0, help="of each way (900)")
    parser.add_argument("--load", type=int, default=20, help="runnable processes at least (20)")
    parser.add_argument("--jobs", default=",".join(JOBS), help=f"of {', '.join(JOBS)}")
    parser.add_argument("--way", default="run,attach", help="run, attach, or both (both)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the JSON goes")
    parser.add_argument("--keep", metavar="DIR", help="a new folder for what the jobs write")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

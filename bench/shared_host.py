"""Verdicts on a machine with more runnable processes than CPUs: false accusations and recall.

    python -m bench.shared_host --seconds 1800 --load 5,10,20,30
    python -m bench.shared_host --jobs slow_ddp_1.3,slow_demo_1.5 --load 20 --out shared.json
    python -m bench.shared_host --jobs ddp,fsdp2,data_loader,pipeline,demo --load 20 --together

One job at a time runs under an agent, next to as many busy processes as the load needs; with
--together all of them at once, and busy processes for what is missing. Each agent is polled every
second, and the load average is noted. Healthy jobs: every verdict that is "found" and every
incident that warns or pages is a false accusation. Slow jobs: one rank computes more from a known
step on; counted are the steps until the rank is named, polls that name another rank, and polls that
lose it again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from bench.estimates import share_interval
from bench.served_agent import running

HERE = Path(__file__).resolve().parent
POLL_SECONDS, ANSWER_SECONDS, START_SECONDS = 1.0, 30.0, 300.0
SLOW_STEP = 40
_AGENT = (sys.executable, "-m", "dfx_agent")
_LAUNCHER = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
_DEMO = (*_AGENT, "demo", "--no-browser", "--listen", "127.0.0.1:0", "--steps", "1000000")


@dataclass(frozen=True)
class Case:
    """A job and the truth about it: ``slow_rank`` is None for a healthy job."""

    command: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    slow_rank: str | None = None
    slow_step: int = 0


def _torchrun(module: str, num_ranks: int) -> tuple[str, ...]:
    job = (*_LAUNCHER, str(num_ranks), "-m", f"bench.mixed.{module}")
    return (*_AGENT, "run", "--listen", "127.0.0.1:0", "--", *job)


def _slow_ddp(factor: float) -> Case:
    env = {"SLOW_RANK": "1", "SLOW_FACTOR": str(factor), "SLOW_STEP": str(SLOW_STEP)}
    return Case(_torchrun("slow_rank", 3), env, "1", SLOW_STEP)


def _slow_demo(factor: float) -> Case:
    return Case((*_DEMO, "--ranks", "4", "--fault", f"straggler:2:{factor}"), {}, "2", 0)


CASES: dict[str, Case] = {
    "ddp": Case(_torchrun("ddp", 3)),
    "fsdp2": Case(_torchrun("fsdp2", 2)),
    "data_loader": Case(_torchrun("data_loader", 2)),
    "pipeline": Case(_torchrun("pipeline", 2)),
    "demo": Case((*_DEMO, "--ranks", "4")),
    "slow_ddp_1.3": _slow_ddp(1.3),
    "slow_ddp_1.5": _slow_ddp(1.5),
    "slow_demo_1.3": _slow_demo(1.3),
    "slow_demo_1.5": _slow_demo(1.5),
}


@dataclass
class Score:
    """What the polls of one job at one load said."""

    job: str
    load: int
    num_polls: int = 0
    num_unanswered: int = 0
    num_false: int = 0
    num_right: int = 0
    num_lost: int = 0
    steps_until_named: int | None = None
    last_step: int = 0
    load_sum: float = 0.0  # of the 1-minute load average at each poll
    false: Counter[str] = field(default_factory=Counter)
    standing: Counter[str] = field(default_factory=Counter)

    def add(self, run: dict[str, Any], case: Case) -> None:
        """Count one poll."""
        self.num_polls += 1
        self.load_sum += os.getloadavg()[0]
        self.last_step = max((row["step"] or 0 for row in run["ranks"]), default=0)
        self.standing[run["standing"]["state"]] += 1
        accusations = list(_accusations(run))
        wrong = [
            text
            for ranks, text in accusations
            if case.slow_rank is None or ranks != [case.slow_rank]
        ]
        self.num_false += bool(wrong)
        self.false.update(wrong)
        is_right = case.slow_rank is not None and any(r == [case.slow_rank] for r, _ in accusations)
        self.num_right += is_right
        if is_right and self.steps_until_named is None:
            self.steps_until_named = self.last_step - case.slow_step
        self.num_lost += self.steps_until_named is not None and not is_right

    def line(self) -> str:
        low, high = share_interval(self.num_false, max(self.num_polls, 1))
        mean_load = self.load_sum / max(self.num_polls, 1)
        text = (
            f"{self.job} at load {self.load} (measured {mean_load:.1f}): {self.last_step} steps, "
        )
        text += f"{self.num_polls} polls, {self.num_unanswered} more unanswered, "
        text += f"{self.num_false} false [{low:.2%}, {high:.2%}]"
        if CASES[self.job].slow_rank is not None:
            text += f"; named after {self.steps_until_named} steps, {self.num_right} polls right, "
            text += f"{self.num_lost} lost again"
        return "\n    ".join(
            [text, f"standing {dict(self.standing)}", *map(str, self.false.items())]
        )


def _accusations(run: dict[str, Any]) -> list[tuple[list[str], str]]:
    """(ranks, sentence) of each verdict found and each incident that warns."""
    found = [v for v in run["verdicts"] if v["state"] == "found"]
    loud = [i for i in run["incidents"] if i["severity"] != "info"]
    return [(v["ranks"], f"{v['kind']}: {v['summary']}") for v in (*found, *loud)]


def score(job: str, load: int, seconds: float, num_busy: int) -> Score:
    """Run one job for so long after its first step, with busy processes next to it."""
    case, result = CASES[job], Score(job, load)
    with tempfile.TemporaryDirectory(prefix="dfx-shared-") as folder, ExitStack() as stack:
        log = Path(folder, "job.log")
        output = stack.enter_context(log.open("wb"))
        options = {"stdout": output, "stderr": subprocess.STDOUT, "start_new_session": True}
        env = _environment(folder, case)
        stack.enter_context(running([*case.command], env=env, cwd=HERE.parent, **options))
        for _ in range(num_busy):
            busy = [sys.executable, "-c", "while True: pass"]
            stack.enter_context(running(busy, start_new_session=True))
        _poll(log, case, result, seconds)
        Path(folder, "end").touch()
    return result


def _poll(log: Path, case: Case, result: Score, seconds: float) -> None:
    deadline = time.monotonic() + START_SECONDS
    with httpx.Client(timeout=ANSWER_SECONDS) as client:
        while time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            url = re.search(r"(http://127\.0\.0\.1:\d+)/", log.read_text(errors="replace"))
            try:
                runs = client.get(f"{url[1]}/api/v1/snapshot").json()["runs"] if url else []
            except httpx.TransportError:  # the server closed an idle connection at this moment
                result.num_unanswered += 1
                continue
            if runs and not result.num_polls and _has_steps(runs[0]):
                deadline = time.monotonic() + seconds
            if runs and (result.num_polls or _has_steps(runs[0])):
                result.add(runs[0], case)


def _has_steps(run: dict[str, Any]) -> bool:
    return any(row["step"] for row in run["ranks"])


def _environment(folder: str, case: Case) -> dict[str, str]:
    stored = {key: value for key, value in os.environ.items() if not key.startswith("DFX_")}
    path = os.pathsep.join([str(HERE.parent), *filter(None, [stored.get("PYTHONPATH")])])
    own = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MIXED_OUT": folder}
    return {**stored, **own, **case.env, "DFX_DIR": f"{folder}/segments", "DFX_LINGER_SECONDS": "0"}


def main() -> int:
    options = _parse()
    jobs, scores = options.jobs.split(","), []
    num_at_once = len(jobs) if options.together else 1
    for load in map(int, options.load.split(",")):
        num_busy = max(0, load - 3 * num_at_once) // num_at_once  # a job has about three ranks
        with ThreadPoolExecutor(num_at_once) as pool:
            run = partial(score, load=load, seconds=options.seconds, num_busy=num_busy)
            for result in pool.map(run, jobs):
                print(result.line(), flush=True)
                scores.append(result)
    if options.out:
        options.out.write_text(json.dumps([vars(item) for item in scores], indent=1) + "\n")
    return int(any(item.num_false for item in scores))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.shared_host", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="of each job (120)")
    parser.add_argument("--load", default="5,10,20,30", help="runnable processes (5,10,20,30)")
    parser.add_argument("--jobs", default=",".join(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--together", action="store_true", help="all jobs at the same time")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the scores as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

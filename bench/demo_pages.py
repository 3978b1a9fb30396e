"""Real ``dfx-agent demo`` runs, one after the other: when the page came, what diagnose said.

``python -m bench.demo_pages [--ranks N] [--keep DIR] [FAULT ...]``: a row of Markdown a run.
``healthy`` runs without a fault; a fault whose step is not told begins at step 10. The log of each
run is backtested too. Not part of `make bench`: a run takes minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HEALTHY = "healthy"
HEALTHY_STEPS, STEPS_AFTER = 120, 16
# the agent has to answer it on the cores of the job
_POLL_SECONDS = 0.5
_LOUD = ("critical", "warning")
_DFX = [sys.executable, "-m", "dfx_agent"]
_HEAD = (
    "| demo | ranks | steps | first found | page | rows after the fault | warnings | backtest "
    "| diagnose |\n|---|---|---|---|---|---|---|---|---|"
)


@dataclass
class Seen:
    """``alerts``: (severity, name) -> newest step when it was first seen to fire."""

    newest_step: int = 0
    found_step: int | None = None
    alerts: dict[tuple[str, str], int] = field(default_factory=dict)
    diagnosis: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.demo_pages", description=__doc__)
    parser.add_argument("faults", nargs="*", default=[HEALTHY], metavar="FAULT")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the logs here")
    options = parser.parse_args()
    print(_HEAD, flush=True)
    for i, fault in enumerate(options.faults):
        with tempfile.TemporaryDirectory(prefix="dfx-demo-") as folder:
            stored = options.keep or Path(folder)
            stored.mkdir(parents=True, exist_ok=True)
            log = stored / f"{i}_{fault.replace(':', '_')}.log"
            print(_row(fault, options.ranks, log, Path(folder)), flush=True)
    return 0


def _row(fault: str, ranks: int, log: Path, folder: Path) -> str:
    onset = None if fault == HEALTHY else int([*fault.split(":"), "10"][1])
    steps = HEALTHY_STEPS if onset is None else onset + STEPS_AFTER
    seen = _watched(fault, ranks, steps, log, folder)
    page = min(
        (step for (kind, _), step in seen.alerts.items() if kind == "critical"), default=None
    )
    late = "" if page is None or onset is None else page - onset
    warned = [
        f"{name} at {step}" for (kind, name), step in seen.alerts.items() if kind == "warning"
    ]
    cells = [
        f"`{fault}`", ranks, seen.newest_step, seen.found_step or "never", page or "never", late,
        ", ".join(warned) or "none", _backtested(log), seen.diagnosis or "-",
    ]  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def _watched(fault: str, ranks: int, steps: int, log: Path, folder: Path) -> Seen:
    command = [*_DFX, "demo", "--ranks", str(ranks), "--steps", str(steps), "--exit"]
    command += ["--no-browser", "--listen", "127.0.0.1:0"]
    command += [] if fault == HEALTHY else ["--fault", fault]
    stored = {name: text for name, text in os.environ.items() if not name.startswith("DFX_")}
    env = {**stored, "DFX_DIR": str(folder / "segments"), "DFX_LINGER_SECONDS": "0"}
    seen = Seen()
    with log.open("wb") as output:
        job = subprocess.Popen(command, cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT)
        try:
            while job.poll() is None:
                for url in _address(log):
                    _look(url, seen, env)
                time.sleep(_POLL_SECONDS)
        finally:
            job.terminate()
            job.wait(60)
    return seen


def _look(url: str, seen: Seen, env: dict[str, str]) -> None:
    """Whatever cannot be read now is looked at again."""
    with contextlib.suppress(OSError, ValueError):
        for run in _json(f"{url}/api/v1/snapshot")["runs"]:
            signals = run["signals"] or {"step": 0}
            seen.newest_step = max(seen.newest_step, signals["step"])
            is_found = any(
                i["state"] == "found" and i["kind"] == "divergence" for i in run["incidents"]
            )
            if is_found and seen.found_step is None:
                seen.found_step = seen.newest_step
                seen.diagnosis = _diagnosed(url, env)
        for alert in _json(f"{url}/api/v1/alerts")["alerts"]:
            if alert["severity"] in _LOUD and not alert["is_inhibited"]:
                seen.alerts.setdefault((alert["severity"], alert["alert"]), seen.newest_step)


def _diagnosed(url: str, env: dict[str, str]) -> str:
    done = subprocess.run(
        [*_DFX, "diagnose", "--url", url],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    reported = re.search(r"divergence \(\w*\): (.*?)\n +-", done.stdout, re.DOTALL)
    return " ".join(reported[1].split()) if reported else f"exit code {done.returncode}"


def _address(log: Path) -> Iterator[str]:
    """The page's, once the demo has told it."""
    found = re.search(r"page (http://[^/ ]+)/", log.read_text(errors="replace")[:2_000])
    if found:
        yield found[1]


def _json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def _backtested(log: Path) -> str:
    done = subprocess.run(
        [*_DFX, "backtest", "--json", str(log)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    (run,) = json.loads(done.stdout)["runs"]
    loud = [f"{a['alert']} at {a['step']}" for a in run["alerts"] if a["severity"] in _LOUD]
    return ", ".join(loud) or "silent"


if __name__ == "__main__":
    sys.exit(main())

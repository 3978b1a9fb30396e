"""What an installed dfx-agent adds to every interpreter start of its environment.

Environments made by ``venv`` take turns: without our start file (two of them, to see what
differences mean nothing), with it, with it and DFX_AGENT=1, and as a child of ``dfx-agent run``.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.estimates import bootstrap_interval, difference_of_medians
from bench.measurement import Bar, Result, median_of, report
from dfx_agent.attach.spawn import environment

PACKAGE = Path(__file__).resolve().parent.parent / "dfx_agent"
START_FILE = PACKAGE / "attach" / "dfx_agent.pth"
PLAIN, PLAIN_TOO = "without the start file", "the same again (A/A)"
INSTALLED = "installed, not enabled"
ENABLED, PRELOADED = "installed, DFX_AGENT=1", "under dfx-agent run"

Start = tuple[str, dict[str, str]]  # interpreter, environment


def measure(*, quick: bool) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="dfx-bench-") as folder:
        starts = _starts(Path(folder))
        milliseconds = _interleaved(starts, num_rounds=3 if quick else 200)
    bars = {INSTALLED: Bar(1.0)}
    names = (INSTALLED, ENABLED, PRELOADED, PLAIN_TOO)
    return [_row(name, milliseconds, bars.get(name)) for name in names]


def _starts(folder: Path) -> dict[str, Start]:
    plain, plain_too = (_environment_at(folder / name) for name in ("plain", "plain_too"))
    installed = _environment_at(folder / "installed", is_installed=True)
    clean = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("DFX_", "PYTHON")) and key != "__PYVENV_LAUNCHER__"
    }
    segments = folder / "segments"
    segments.mkdir(mode=0o700)
    return {
        PLAIN: (plain, clean),
        PLAIN_TOO: (plain_too, clean),
        INSTALLED: (installed, clean),
        ENABLED: (installed, {**clean, "DFX_AGENT": "1"}),
        PRELOADED: (plain, environment(clean, str(segments), "bench")),
    }


def _environment_at(folder: Path, *, is_installed: bool = False) -> str:
    """Its interpreter; ``is_installed`` puts in what our wheel would."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    if is_installed:
        (packages,) = folder.glob("lib/python*/site-packages")
        (packages / "dfx_agent").symlink_to(PACKAGE)
        (packages / START_FILE.name).write_bytes(START_FILE.read_bytes())
    return str(folder / "bin" / "python")


def _interleaved(starts: dict[str, Start], num_rounds: int) -> dict[str, list[float]]:
    """Milliseconds of ``python -c pass`` from start to end; the first round is warm-up."""
    milliseconds: dict[str, list[float]] = {name: [] for name in starts}
    for number in range(num_rounds + 1):
        for name in random.sample(list(starts), len(starts)):
            python, env = starts[name]
            begin = time.perf_counter()
            pid = os.posix_spawn(python, [python, "-c", "pass"], env)
            _, status = os.waitpid(pid, 0)
            elapsed = time.perf_counter() - begin
            if status:
                raise RuntimeError(f"{python} -c pass failed")
            if number:
                milliseconds[name].append(elapsed * 1e3)
    return milliseconds


def _row(name: str, milliseconds: dict[str, list[float]], bar: Bar | None) -> Result:
    ours, plain = milliseconds[name], milliseconds[PLAIN]
    low, high = bootstrap_interval(difference_of_medians, ours, plain)
    return Result(
        name=f"interpreter start added, {name}",
        value=difference_of_medians(ours, plain),
        unit="ms",
        n=len(ours),
        spread={"low": low, "high": high},
        baseline=median_of("python -c pass without the start file", plain),
        bar=bar,
        note="difference of medians, 95 % interval; baseline is the whole start",
    )


if __name__ == "__main__":
    report(measure)

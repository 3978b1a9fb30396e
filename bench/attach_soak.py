"""Attach again and again to every kind of program on every interpreter found, and lose none.

Each cycle starts the real helper and waits until the text has run in the target. The programs
check their own results bit for bit and count the texts; a target is lost when it died, stands
still, computed something wrong, or did not run a text that was said to have run. The cheapest text
is injected, so the latency is that of the injection alone.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from bench.estimates import quantile
from bench.measurement import Bar, Result, of_samples, report
from dfx_agent.attach.inject import Injected, inject
from dfx_agent.base.errors import AttachError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "integration"))
from injection_targets import PROGRAMS, RunningTarget, interpreters, running_target

_NUM_CYCLES = 1050
_HELD = "held"  # the GIL is held throughout: the bar on latency leaves it out
_BUDGET_SECONDS = 20.0


@dataclass
class _Soak:
    """What all cycles have shown; ``held`` are the latencies of the program that holds the GIL."""

    run_seconds: list[float] = field(default_factory=list)
    held_seconds: list[float] = field(default_factory=list)
    stop_seconds: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    routes: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)

    def add(self, program: str, done: Injected) -> None:
        self.routes[done.method] += 1
        self.stop_seconds.append(done.stop_seconds)
        if done.ran_seconds is None:
            self.refused["cancelled"] += 1
        else:
            seconds = self.held_seconds if program == _HELD else self.run_seconds
            seconds.append(done.ran_seconds)


def measure(*, quick: bool) -> list[Result]:
    soak = _Soak()
    commands = interpreters()
    kinds = [(version, program) for version in commands for program in PROGRAMS]
    num_each = 1 if quick else -(-_NUM_CYCLES // len(kinds))
    for version, program in kinds:
        before = len(soak.lost)
        _cycles(soak, commands[version], version, program, num_each)
        verdict = "LOST" if len(soak.lost) > before else "well"
        print(f"{version} {program}: {num_each} cycles, {verdict}", file=sys.stderr, flush=True)
    for line in soak.lost:
        print(line, file=sys.stderr)
    return _rows(soak, len(kinds) * num_each, ", ".join(commands))


def _cycles(soak: _Soak, command: list[str], version: str, program: str, num: int) -> None:
    """One target; losing it ends its cycles."""
    try:
        with running_target(command, program) as target:
            num_ran = 0
            for _ in range(num):
                num_ran += _cycle(soak, target, program)
                target.wait_for(num_ran)
            target.goes_on()
    except (AssertionError, OSError) as error:
        soak.lost.append(f"{version} {program}: {error}")


def _cycle(soak: _Soak, target: RunningTarget, program: str) -> bool:
    """Whether the text was said to have run."""
    try:
        done = inject(target.pid, target.payload, budget_seconds=_BUDGET_SECONDS)
    except AttachError as error:
        soak.refused[error.code] += 1
        return False
    soak.add(program, done)
    return done.ran


def _rows(soak: _Soak, num: int, versions: str) -> list[Result]:
    routes = ", ".join(f"{count} {route}" for route, count in sorted(soak.routes.items()))
    refused = ", ".join(f"{n} {code}" for code, n in soak.refused.items()) or "none"
    milliseconds = [seconds * 1e3 for seconds in soak.stop_seconds if seconds]
    longest = max(milliseconds)
    spread = {"p10": quantile(milliseconds, 0.1), "p90": quantile(milliseconds, 0.9)}
    where = f"Python {versions}; {routes}; refused: {refused}"
    rows = [
        Result("attach: targets lost", len(soak.lost), "", num, {"low": 0, "high": 0}, bar=Bar(0)),
        Result("attach: longest stop", longest, "ms", len(milliseconds), spread, bar=Bar(100)),
    ]
    for name, samples in (("", soak.run_seconds), (", GIL held", soak.held_seconds)):
        bar = None if name else Bar(1.0)
        rows += [
            of_samples(f"attach to text run, p50{name}", samples, "s", note=where),
            of_samples(f"attach to text run, p95{name}", samples, "s", q=0.95, bar=bar),
        ]
    return rows


if __name__ == "__main__":
    report(measure)

"""Which small changes of the code that concludes things do the unit tests notice?

    python -m bench.mutants --seed 1 --per-module 25 --out mutants.json
    python -m bench.mutants dfx_agent.judge.hang.verdict --per-module 1000

One process collects the tests and runs them once, to learn which test reaches which statement.
Then each mutant is a fork in which the changed code takes the place of the module's, and the tests
that reach it, for MOST_SECONDS at most, run until one fails. A mutant survives when none does;
``unreached`` is a survivor that no test runs at all. Nothing is written into the tree. Forks are
fast where the tests (``--tests``) are of a few modules, and slow once they have imported torch.

What this does not see: a module's constant is changed where other modules hold it by name, but not
in values computed from it when they were imported; a process that a test starts runs the code as
it is.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import itertools
import json
import math
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from bench.mutations import Mutation, mutated, mutations, with_hits
from bench.transplant import functions_by_file, transplant

ROOT = Path(__file__).resolve().parent.parent
# rooms in which all modules conclude something, and single modules beside them
ROOMS = ("judge", "facts", "node/time", "node/collectives", "rules")
SINGLE = ("node.track", "node.ended", "node.memory", "node.host.processor_time",
          "job.incidents.book", "job.judging", "agent.local_run", "wire.ring", "wire.segment",
          "wire.layout")  # fmt: skip


def _of_room(room: str) -> list[str]:
    paths = sorted((ROOT / "dfx_agent" / room).rglob("*.py"))
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths)
    return [name for name in names if not name.endswith("__init__") and ".declared." not in name]


MODULES = (*itertools.chain(*map(_of_room, ROOMS)), *(f"dfx_agent.{name}" for name in SINGLE))
TESTS = tuple(f"tests/unit/{room}" for room in ("judge", "node", "verdicts", "agent", "wire"))
MOST_SECONDS = 5.0  # of the tests that are tried on one mutant, as they run without it
WALL_SECONDS, CPU_SECONDS = 300, 20  # of one mutant: who takes longer has been noticed
HIT = "__hit__"

Hits = frozenset[tuple[str, int]]  # (module, line)
Reached = dict[str, tuple[float, Hits]]


class Trial:
    """A pytest plugin that runs mutants in place of the tests; ``rows`` has one for each."""

    def __init__(self, modules: Sequence[str], per_module: int, seed: int, minutes: float) -> None:
        self._modules = {name: importlib.import_module(name) for name in modules}
        self._sources = {
            name: Path(str(module.__file__)).read_text(encoding="utf-8")
            for name, module in self._modules.items()
        }
        self._hit: set[tuple[str, int]] = set()
        self._per_module, self._minutes = per_module, minutes
        self._random = random.Random(seed)
        self._functions: dict[str, list[FunctionType]] = {}
        self._failed: list[str] = []
        self.rows: list[dict[str, Any]] = []

    def pytest_runtestloop(self, session: Any) -> bool:
        functions = functions_by_file()
        self._functions = {name: functions[str(m.__file__)] for name, m in self._modules.items()}
        for name in self._modules:
            self._transplant(name, with_hits(self._sources[name], HIT, name), **{HIT: self._hit})
        reached = self._reached(session)
        gc.freeze()  # a collection in a fork would copy all there is
        drawn = [
            (name, mutation)
            for name, source in self._sources.items()
            for mutation in self._sample(mutations(source))
        ]
        self._random.shuffle(drawn)  # so that a part of them is a sample, too
        over = time.monotonic() + 60 * self._minutes
        for name, mutation in drawn:
            if time.monotonic() < over:
                items = _that_reach(session.items, reached, name, mutation)
                end = self._outcome(session, items, name, mutation.index) if items else "unreached"
                line = self._sources[name].splitlines()[mutation.line - 1].strip()
                row = {"module": name, "line": mutation.line, "what": mutation.what, "code": line}
                self.rows.append({**row, "end": end})
                print(
                    f"{name}:{mutation.line}: {mutation.what}: {end}", file=sys.stderr, flush=True
                )
        return True

    def _sample(self, sites: list[Mutation]) -> list[Mutation]:
        return self._random.sample(sites, min(self._per_module, len(sites)))

    def _transplant(self, name: str, tree: ast.Module, **names: object) -> None:
        transplant(self._modules[name], tree, self._functions[name], **names)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._failed.append(report.nodeid)

    def _reached(self, session: Any) -> Reached:
        """Of each test that passes: the processor seconds it takes, and what it reaches."""
        reached: Reached = {}
        for item, after in zip(session.items, [*session.items[1:], None], strict=True):
            self._hit.clear()
            begin, num_failed = time.process_time(), len(self._failed)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if len(self._failed) == num_failed:
                reached[item.nodeid] = (time.process_time() - begin, frozenset(self._hit))
        print(f"left out, since they fail as it is: {self._failed}", file=sys.stderr, flush=True)
        return reached

    def _outcome(self, session: Any, items: list[Any], name: str, index: int) -> str:
        """``survived``, or how it ended: the test that failed, the signal, or the time it took."""
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._be_mutant(session, items, name, index, write)
        os.close(write)
        status = _waited(pid)
        with os.fdopen(read) as pipe:
            result = pipe.read()
        if status is None:
            return "took too long"
        return result or f"ended with {status}"

    def _be_mutant(self, session: Any, items: list[Any], name: str, index: int, out: int) -> None:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        quiet = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(quiet, descriptor)
        self._failed.clear()
        try:
            self._transplant(name, mutated(self._sources[name], index))
            for item, after in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                if self._failed:
                    session._setupstate.teardown_exact(None)
                    break
            end = self._failed[0] if self._failed else "survived"
        except BaseException as error:  # noqa: BLE001  # a mutant may raise whatever it likes
            end = f"not even imported: {error!r}"
        os.write(out, end.encode())
        os._exit(0)


def _that_reach(items: list[Any], reached: Reached, name: str, mutation: Mutation) -> list[Any]:
    """The tests that run its statement, the module's own and cheap ones first, up to MOST_SECONDS.

    For what is done at import, the tests that run anything of the module.
    """
    place = (name, mutation.statement_line)
    modules = {test: {module for module, _ in hit} for test, (_, hit) in reached.items()}
    found = [
        item
        for item in items
        if item.nodeid in reached
        and (
            name in modules[item.nodeid]
            if mutation.is_at_import
            else place in reached[item.nodeid][1]
        )
    ]
    own = name.rpartition(".")[2].rstrip("s")
    found.sort(key=lambda item: (own not in item.path.name, reached[item.nodeid][0]))
    sums = itertools.accumulate(reached[item.nodeid][0] for item in found)
    return [item for item, seconds in zip(found, sums, strict=True) if seconds <= MOST_SECONDS]


def _waited(pid: int) -> int | None:
    """The status it ended with; None if it was killed after WALL_SECONDS."""
    over = time.monotonic() + WALL_SECONDS
    while time.monotonic() < over:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.01)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.mutants")
    parser.add_argument(
        "module", nargs="*", default=MODULES, help="dotted names; all that conclude"
    )
    parser.add_argument("--per-module", type=int, default=25, help="mutants drawn of each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=math.inf, help="after that, no new one")
    parser.add_argument("--tests", nargs="+", default=TESTS)
    parser.add_argument("--out", type=Path, help="every mutant, as JSON")
    options = parser.parse_args()
    os.chdir(ROOT)
    trial = Trial(options.module, options.per_module, options.seed, options.minutes)
    with tempfile.TemporaryDirectory(prefix="dfx-mutants-") as folder:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
        os.environ["HYPOTHESIS_PROFILE"] = "mutants"
        quiet = ["-q", "-s", "--no-summary", "-p", "no:cacheprovider"]
        pytest.main([*quiet, *options.tests], plugins=[trial])
    if options.out:
        options.out.write_text(json.dumps(trial.rows, indent=1) + "\n")
    _print(trial.rows)


def _print(rows: list[dict[str, Any]]) -> None:
    alive = [row for row in rows if row["end"] in ("survived", "unreached")]
    survivors = Counter(row["module"] for row in alive)
    for module, number in Counter(row["module"] for row in rows).items():
        print(f"| {module} | {number} | {number - survivors[module]} |")
    print(f"| all | {len(rows)} | {len(rows) - len(alive)} |")
    for row in alive:
        print(f"{row['module']}:{row['line']}: {row['what']}: {row['end']}: {row['code']}")


if __name__ == "__main__":
    main()

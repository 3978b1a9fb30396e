"""Which files a number passes on its way from a training process to /metrics: traced, not read.

    python -m bench.number_path            # print the files
    python -m bench.number_path --page     # write them into docs/concepts/how-a-number-travels.md

A process trains one layer with the guest. An agent reads it and renders /metrics. Both run with a
profiler: it collects the numbers that each function of dfx_agent holds, as they are or in a
collection, and those that it returns, also inside rows. A file is on the path if one of its
functions has the traced number, or both times that it is made from. Files that read the number for
another purpose are left out (READERS). Bytes are not seen: what only moves them is not in the list.

tests/unit/bench/test_number_path.py compares the page with the trace.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

STAGE, GRAD_NORM, WAIT = "a stage span", "a gradient norm", "a collective wait"
ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "dfx_agent"
PAGE = ROOT / "docs" / "concepts" / "how-a-number-travels.md"
BEGIN = "<!-- Written by `python -m bench.number_path --page`; do not edit below. -->"
_STAGE_NAME, _NORM = "traced_stage", 1234.0625
_NUM_STEPS = 4
_LOCAL_DEPTH, _RESULT_DEPTH, _MAX_ITEMS = 2, 3, 64
_LEAST_TIME_NS = 1_000_000  # smaller whole numbers are counts and labels
# What reads the number for another purpose: nothing of it comes back to its metric.
READERS = {
    "judge/": "verdicts",
    "job/incidents/": "incidents",
    "facts/short_steps.py": "joins short steps for judges",
    "catalogue/weight_sync.py": "metrics of weight sync",
    "node/event_loop.py": "lag of the event loop",
    "node/memory_facts.py": "memory by stage",
    "node/thread_moves.py": "which threads train",
    "node/time/pieces.py": "timelines",
    "node/time/stamps.py": "when each stage last began and ended",
}

Number = int | float
# numbers of each call, by file
Seen = dict[str, set[frozenset[Number]]]


class Profile:
    """Numbers by file of the package and call, of all threads while ``recording``."""

    def __init__(self) -> None:
        self.seen: Seen = defaultdict(set)

    @contextmanager
    def recording(self) -> Iterator[None]:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]

    def _profile(self, frame: FrameType, event: str, result: Any) -> None:
        file = frame.f_code.co_filename
        if event != "return" or not file.startswith(f"{PACKAGE}{os.sep}"):
            return
        numbers = set(_numbers(result, _RESULT_DEPTH))
        for name, value in frame.f_locals.items():
            if name != "self" and not _is_row(value):
                numbers.update(_numbers(value, _LOCAL_DEPTH))
        self.seen[os.path.relpath(file, PACKAGE)].add(frozenset(numbers))


def _is_row(value: Any) -> bool:
    return hasattr(type(value), "__dataclass_fields__")


def _numbers(value: Any, depth: int) -> Iterator[Number]:
    if isinstance(value, float) or (isinstance(value, int) and value >= _LEAST_TIME_NS):
        yield value
    elif depth and isinstance(value, Mapping):
        for item in list(value.values())[:_MAX_ITEMS]:
            yield from _numbers(item, depth - 1)
    elif depth and isinstance(value, (tuple, list, deque)):
        for item in list(value)[-_MAX_ITEMS:]:
            yield from _numbers(item, depth - 1)
    elif depth and _is_row(value):
        for name in type(value).__dataclass_fields__:
            yield from _numbers(getattr(value, name, None), depth - 1)


def train(directory: str) -> None:
    """The training process: prints what the guest's files held, and waits for the end of stdin."""
    import torch
    import torch.distributed as dist

    import dfx_agent.shim as dfx
    from bench.hooked_calls import single_rank
    from bench.toggled_guest import hook

    os.environ |= {"DFX_MAX_OVERHEAD": "0", "DFX_DISABLE_HOOKS": ""}
    dfx.init(run="path", role="trainer", rank=0, directory=directory)
    layer, profile = torch.nn.Linear(1, 1, bias=False), Profile()
    with single_rank():
        hook(root=layer)
        for step in range(1, _NUM_STEPS + 1):
            dfx.set_step(step)
            with profile.recording():
                with dfx.stage(_STAGE_NAME):
                    time.sleep(0.01)
                layer.weight.grad = torch.full((1, 1), _NORM)
                torch.nn.utils.clip_grad_norm_(layer.parameters(), 1e9)
                dist.all_reduce(torch.ones(1))
        time.sleep(0.5)
        dfx.set_step(_NUM_STEPS + 1)
        seen = {file: [list(call) for call in calls] for file, calls in profile.seen.items()}
        print(json.dumps(seen), flush=True)
        sys.stdin.read()


def paths() -> dict[str, tuple[str, ...]]:
    """Files by traced number, those of the guest first."""
    with tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm") as folder:
        command = [sys.executable, "-m", "bench.number_path", folder]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as guest:
            assert guest.stdin is not None
            assert guest.stdout is not None
            written = json.loads(guest.stdout.readline())
            records = _records(folder)
            read, page = _agent(folder)
            guest.stdin.close()
    traces = _traces(records, page)
    return {
        name: (*_on_path(written, traced.at_writing()), *_on_path(read, traced))
        for name, traced in traces.items()
    }


class _Traced(NamedTuple):
    """A call has the number if it has one of ``values``, or all of ``times``.

    Other parts of the agent hold the latest time of a process: one of both says nothing there.
    """

    values: frozenset[Number]
    times: frozenset[Number]

    def at_writing(self) -> _Traced:
        """The guest takes both times one after the other."""
        return _Traced(self.values | self.times, frozenset())

    def is_in(self, call: Iterable[Number]) -> bool:
        numbers = set(call)
        return bool(self.values & numbers or (self.times and self.times <= numbers))


def _on_path(seen: Mapping[str, Iterable[Iterable[Number]]], traced: _Traced) -> list[str]:
    on_path = (file for file, calls in seen.items() if any(map(traced.is_in, calls)))
    return sorted(file for file in on_path if not file.startswith(tuple(READERS)))


def _records(folder: str) -> dict[str, tuple[Any, ...]]:
    """The last record of each name."""
    from dfx_agent.wire import SegmentReader

    (path,) = Path(folder).glob("*.seg")
    reader = SegmentReader(str(path))
    try:
        return {reader.name(record[9]) or "": record for record in reader.drain()}
    finally:
        reader.close()


def _agent(folder: str) -> tuple[Seen, str]:
    from dfx_agent.agent.agent import Agent
    from dfx_agent.agent.config import Config
    from dfx_agent.exporters.prometheus.exporter import PrometheusExporter

    agent, profile = Agent(Config(folder), reap=False), Profile()
    exporter = PrometheusExporter(agent)
    with profile.recording():
        for _ in range(5):
            agent.poll()
            time.sleep(0.3)
        page = exporter.render(None)[0].decode()
    agent.stop()
    return profile.seen, page


def _traces(records: Mapping[str, tuple[Any, ...]], page: str) -> dict[str, _Traced]:
    collective = next((name for name in records if name.startswith("all_reduce@")), "")
    if not collective:
        raise RuntimeError(f"no all_reduce among the records: {', '.join(records)}")
    stage = _value(page, "dfx_rank_stage_seconds", f'stage="{_STAGE_NAME}"')
    wait = _value(page, "dfx_rank_wait_seconds", 'kind="collective"')
    return {
        STAGE: _timed(records[_STAGE_NAME], stage),
        GRAD_NORM: _Traced(frozenset({_NORM}), frozenset()),
        WAIT: _timed(records[collective], wait),
    }


def _timed(record: tuple[Any, ...], seconds: float) -> _Traced:
    """``seconds`` is what /metrics shows."""
    begin_ns, end_ns = record[1:3]
    between = frozenset({end_ns - begin_ns, (end_ns - begin_ns) / 1e9, seconds})
    return _Traced(between, frozenset({begin_ns, end_ns}))


def _value(page: str, metric: str, label: str) -> float:
    lines = [line for line in page.splitlines() if line.startswith(metric) and label in line]
    if not lines:
        raise RuntimeError(f"no {metric} with {label} on /metrics")
    return float(lines[0].rpartition(" ")[2])


def listed(page: str) -> dict[str, set[str]]:
    """Files by traced number, as the page has them."""
    parts = page.partition(BEGIN)[2].split("\n## ")[1:]
    return {
        part.partition(":")[0].lower(): set(re.findall(r"^\| `([^`]+)`", part, re.MULTILINE))
        for part in parts
    }


def render(found: Mapping[str, Iterable[str]]) -> str:
    """The generated part of the page."""
    lines = [BEGIN]
    for name, files in found.items():
        rows = [f"| `{file}` | {_first_line(file)} |" for file in files]
        title = f"## {name[0].upper()}{name[1:]}: {len(rows)} files"
        lines += ["", title, "", "| file in `dfx_agent/` | what it does |", "|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _first_line(file: str) -> str:
    docstring = ast.get_docstring(ast.parse((PACKAGE / file).read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].replace("|", "\\|")


def main(*, is_page: bool) -> None:
    found = paths()
    if is_page:
        head = PAGE.read_text(encoding="utf-8").partition(BEGIN)[0]
        PAGE.write_text(head + render(found), encoding="utf-8")
    for number, files in found.items():
        print(f"{number}: {len(files)} files")
        for file in files:
            print(f"  {file}")


if __name__ == "__main__":
    if sys.argv[1:] in ([], ["--page"]):
        main(is_page=len(sys.argv) > 1)
    else:
        train(sys.argv[1])

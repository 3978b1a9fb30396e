"""A real ``dfx-agent hub`` of 8 to 10,240 ranks: what it takes, and how soon it names a culprit.

Documents of a recorded job, made into those of many nodes (``perturbed_job``), are sent by clients
in other processes. First nothing is wrong, then one rank is slower, then one stands still. The
hub's processor time, and not wall time, is what is compared: senders and hub share the processors,
and the senders' time is not counted. Verdicts are asked for twice a second, metrics each 15 s.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import psutil

from bench.fact_senders import Work, work_line
from bench.measurement import Bar, Result, of_samples, report
from bench.perturbed_job import FIRST_STEP, Plan
from bench.recorded_job import Recording, recorded
from bench.served_agent import running

# a recording that is there is used, else it is made and kept there
RECORDING = "DFX_BENCH_RECORDING"
# hubs on other hosts have one; without, each request is asked whose process it comes from
TOKEN = "of-the-bench-of-a-hub-of-thousands"
RANKS_PER_NODE = 8
SLOWNESS = 1.25
SLOW_STEP = 6
ASK_SECONDS, SCRAPE_SECONDS = 0.5, 15.0
MAX_VERDICT_SECONDS, MAX_BYTES = 5.0, 1000.0
_HEADERS = {"Authorization": f"Bearer {TOKEN}"}


class Case(NamedTuple):
    """Bars are None where the issue names none."""

    num_ranks: int
    step_seconds: float
    max_percent: float | None = None
    max_mib: float | None = None
    has_page: bool = False
    num_steps: int = 14
    hang_seconds: float = 34.0


CASES = (
    Case(8, 5.0),
    Case(64, 5.0),
    Case(256, 5.0),
    Case(1024, 5.0, 25.0, 300.0),
    Case(1024, 5.0, has_page=True),
    Case(4096, 10.0),
    Case(10240, 10.0, 150.0),
)


@dataclass
class Seen:
    """What was asked of a hub meanwhile; instants are monotonic. ``others``: what was false."""

    straggler: float = 0.0
    straggler_step: int | None = None
    hang: float = 0.0
    others: list[str] = field(default_factory=list)
    page_bytes: int = 0


@dataclass(frozen=True)
class Measured:
    """Of one case; seconds are of the time in which the senders told something."""

    case: Case
    percents: list[float]
    mib: float
    seen: Seen
    sent: dict[str, Any]
    begin: float
    seconds: float
    num_missed: int
    num_refused: int


def measure(*, quick: bool) -> list[Result]:
    cases = [Case(8, 1.0, num_steps=8, hang_seconds=14.0)] if quick else _chosen()
    with tempfile.TemporaryDirectory(prefix="dfx-bench-") as folder:
        path = Path(os.environ.get(RECORDING) or Path(folder, "recording.json"))
        if not path.is_file():
            reported = recorded(2, 3, 14.0) if quick else recorded(RANKS_PER_NODE, 16, 26.0)
            reported.save(path)
        per_node = Recording.load(path).num_ranks
        found = []
        for case in cases:
            found.append(_measured(case, path, per_node))
            print(f"bench: {found[-1]}"[:2000], file=sys.stderr, flush=True)
    return [row for item in found for row in _rows(item)] + _laws(found)


def _chosen() -> list[Case]:
    """All, or those of so many ranks as $DFX_BENCH_RANKS names."""
    chosen = os.environ.get("DFX_BENCH_RANKS", "").split()
    return [case for case in CASES if not chosen or str(case.num_ranks) in chosen]


def _measured(case: Case, recording: Path, per_node: int) -> Measured:
    hang = _hang_seconds(case)
    num_nodes = case.num_ranks // per_node
    hung = num_nodes // 2 * per_node + 1
    slow = min(case.num_ranks - 2, num_nodes // 3 * per_node + 2)
    plan = Plan(case.num_ranks, per_node, case.step_seconds, slow, SLOW_STEP, SLOWNESS, hung, hang)
    with ExitStack() as stack:
        token_file = Path(stack.enter_context(tempfile.TemporaryDirectory()), "token")
        token_file.write_text(TOKEN)
        token_file.chmod(0o600)
        port, process = stack.enter_context(_hub(token_file))
        senders = stack.enter_context(_senders(port, recording, plan, hang + case.hang_seconds))
        begin = _begun(senders)
        watch = stack.enter_context(_watched(port, plan, begin, has_page=case.has_page))
        percents, mib = _processor(process, begin, hang + case.hang_seconds)
        sent = _merged([json.loads(_line(sender)) for sender in senders])
        num_missed, num_refused = _losses(port)
    return Measured(
        case, percents, mib, watch, sent, begin, hang + case.hang_seconds, num_missed, num_refused
    )


def _hang_seconds(case: Case) -> float:
    """When a rank stands, in the middle of a step."""
    return (case.num_steps + 0.5) * case.step_seconds


@contextmanager
def _hub(token_file: Path) -> Iterator[tuple[int, psutil.Process]]:
    command = [sys.executable, "-m", "dfx_agent", "hub", "--listen", "127.0.0.1:0"]
    command += ["--token-file", str(token_file)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("DFX_")}
    with running(command, stdout=subprocess.PIPE, text=True, env=env) as hub:
        assert hub.stdout is not None
        found = re.search(r":(\d+)/", hub.stdout.readline())
        if found is None:
            raise RuntimeError("dfx-agent hub did not say where it listens")
        yield int(found[1]), psutil.Process(hub.pid)


@contextmanager
def _senders(
    port: int, recording: Path, plan: Plan, seconds: float
) -> Iterator[list[subprocess.Popen[str]]]:
    num = 1 if plan.num_nodes < 64 else 2
    ends = [plan.num_nodes * n // num for n in range(num + 1)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with ExitStack() as stack:
        senders = []
        for first, end in pairwise(ends):
            command = [sys.executable, "-m", "bench.fact_senders"]
            sender = stack.enter_context(running(command, **pipes))
            _write(sender, work_line(Work(port, TOKEN, str(recording), plan, first, end, seconds)))
            senders.append(sender)
        yield senders


def _begun(senders: Sequence[subprocess.Popen[str]]) -> float:
    """When the job begins: all nodes are known, and what they will tell at this pace is made."""
    every = max(json.loads(_line(sender))["every_seconds"] for sender in senders)
    for sender in senders:
        _write(sender, json.dumps({"every_seconds": every}) + "\n")
    for sender in senders:
        _line(sender)
    begin = time.monotonic() + 1.0
    for sender in senders:
        _write(sender, json.dumps({"begin": begin}) + "\n")
    return begin


def _processor(process: psutil.Process, begin: float, seconds: float) -> tuple[list[float], float]:
    """(percent of a core in windows of 5 s from the third step on, most resident MiB)."""
    percents, mib = [], 0.0
    time.sleep(max(0.0, begin - time.monotonic()))
    at, before = time.monotonic(), _cpu(process)
    while at < begin + seconds:
        time.sleep(5.0)
        now, cpu = time.monotonic(), _cpu(process)
        percents.append(100 * (cpu - before) / (now - at))
        mib = max(mib, process.memory_info().rss / 2**20)
        at, before = now, cpu
    return percents, mib


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def _watched(port: int, plan: Plan, begin: float, *, has_page: bool) -> Iterator[Seen]:
    """Asked for verdicts, scraped, and with a page open."""
    seen, stop = Seen(), threading.Event()
    acts: list[Callable[[], None]] = [lambda: _ask(port, plan, begin, seen, stop)]
    acts += [lambda: _scrape(port, stop)]
    if has_page:
        acts.append(lambda: _follow_page(port, seen, stop))
    threads = [threading.Thread(target=act, daemon=True) for act in acts]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)


def _ask(port: int, plan: Plan, begin: float, seen: Seen, stop: threading.Event) -> None:
    while not stop.wait(ASK_SECONDS):
        for run in json.loads(_get(port, "/api/v1/verdicts")):
            for verdict in run["verdicts"]:
                _see(verdict, plan, time.monotonic(), time.monotonic() - begin, seen)


def _see(verdict: dict[str, Any], plan: Plan, now: float, seconds: float, seen: Seen) -> None:
    if verdict["state"] != "found":
        return
    ranks = verdict["ranks"]
    slow = verdict["kind"] == "straggler" and ranks == [str(plan.slow_rank)]
    hung = verdict["kind"] == "hang" and ranks == [str(plan.hung_rank)]
    if slow and seconds >= plan.slow_step * plan.step_seconds:
        if not seen.straggler:
            seen.straggler, seen.straggler_step = now, verdict["step"]
    elif hung and seconds >= plan.hang_seconds:
        seen.hang = seen.hang or now
    else:
        seen.others.append(f"{seconds:.0f} s: {verdict['kind']} {verdict['summary'][:120]}")


def _scrape(port: int, stop: threading.Event) -> None:
    while not stop.wait(SCRAPE_SECONDS):
        _get(port, "/metrics")


def _follow_page(port: int, seen: Seen, stop: threading.Event) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/api/v1/stream", headers=_HEADERS)
    response = connection.getresponse()
    while not stop.is_set():
        seen.page_bytes += len(response.readline())
    connection.close()


def _losses(port: int) -> tuple[int, int]:
    """(documents that came after one that was lost, documents that were refused), of all nodes."""
    text = _get(port, "/metrics").decode()
    return _total(text, "dfx_hub_missed_documents_total"), _total(
        text, "dfx_hub_refused_documents_total"
    )


def _total(text: str, name: str) -> int:
    found = re.findall(rf"^{name}{{.*}} (\S+)$", text, re.MULTILINE)
    return int(sum(map(float, found)))


def _get(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path, headers=_HEADERS)
        return connection.getresponse().read()
    finally:
        connection.close()


def _merged(told: Sequence[dict[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = {key: 0 for key in told[0] if key.startswith("num_")}
    sent: dict[int, float] = {}
    for item in told:
        for key in whole:
            whole[key] += item[key]
        for step, at in item["step_sent"].items():
            sent[int(step)] = max(at, sent.get(int(step), 0.0))
    late = max(item["late_seconds"] for item in told)
    hang = max(item["hang_told"] for item in told)
    return {**whole, "step_sent": sent, "late_seconds": late, "hang_told": hang}


def _rows(found: Measured) -> list[Result]:
    case, sent = found.case, found.sent
    page = " beside an open page" if case.has_page else ""
    what = f"hub of {case.num_ranks:,} ranks{page}"
    note = (
        f"a step every {case.step_seconds:g} s, {sent['num_messages']} documents, "
        f"{found.num_missed + sent['num_lacked']} missed, "
        f"{found.num_refused + sent['num_failed']} refused, sent at most "
        f"{sent['late_seconds']:.1f} s late"
    )
    percents, cpu, mib = found.percents[1:], _bar(case.max_percent), _bar(case.max_mib)
    rows = [
        of_samples(f"{what}, processor time", [fmean(percents)], "% of a core", bar=cpu, note=note),
        of_samples(f"{what}, most in 5 s", [max(percents)], "% of a core"),
        of_samples(f"{what}, resident memory", [found.mib], "MiB", bar=mib),
        *_of_verdicts(found, what),
        of_samples(f"{what}, verdicts that are false", [len(found.seen.others)], "",
                   bar=Bar(0.0), note="; ".join(dict.fromkeys(found.seen.others))[:300]),
    ]  # fmt: skip
    per_step = sent["num_bytes"] / max(1, sent["num_rank_steps"])
    rate = sent["num_bytes"] / _hang_seconds(case)  # while it makes steps
    rows += [
        of_samples(f"{what}, bytes of a rank and step", [per_step], "B", bar=Bar(MAX_BYTES)),
        of_samples(f"{what}, bytes a second", [rate / 1024], "KiB/s"),
    ]
    if case.has_page:
        kib = found.seen.page_bytes / found.seconds / 1024
        rows.append(of_samples(f"{what}, stream", [kib], "KiB/s", bar=Bar(200.0)))
    return rows


def _of_verdicts(found: Measured, what: str) -> list[Result]:
    """From when the last node told what it needs to when it is said, or to the end if it is not."""
    seen, sent, end = found.seen, found.sent, found.begin + found.seconds
    since = found.begin + _hang_seconds(found.case)
    step = SLOW_STEP if seen.straggler_step is None else seen.straggler_step - FIRST_STEP
    slow = (seen.straggler or end) - sent["step_sent"].get(step, end - found.seconds)
    hang = (seen.hang or end) - (sent["hang_told"] or since)
    after = f"{seen.hang - since:.1f} s after it stood" if seen.hang else "not named"
    named = f"after {step - SLOW_STEP + 1} slow steps" if seen.straggler else "not named"
    bar = Bar(MAX_VERDICT_SECONDS)
    return [
        of_samples(f"{what}, from facts to straggler", [slow], "s", bar=bar, note=named),
        of_samples(f"{what}, from facts to hang", [hang], "s", bar=bar, note=after),
    ]


def _laws(found: Sequence[Measured]) -> list[Result]:
    """How processor time and memory grow with the ranks: the slope of their logarithms."""
    known = [item for item in found if not item.case.has_page]
    if len(known) < 3:
        return []
    ranks = [log(item.case.num_ranks) for item in known]
    # of one step, as large jobs make fewer of them
    cpu = [log(fmean(item.percents[1:]) * item.case.step_seconds) for item in known]
    mib = [log(item.mib) for item in known]
    return [
        of_samples("growth of processor time of a step with ranks", [_slope(ranks, cpu)], "",
                   bar=Bar(1.0), note="slope of logarithms: 1 is linear"),
        of_samples("growth of memory with ranks", [_slope(ranks, mib)], "", bar=Bar(1.0)),
    ]  # fmt: skip


def _slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    x, y = fmean(xs), fmean(ys)
    squares = sum((item - x) ** 2 for item in xs)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / squares


def _bar(limit: float | None) -> Bar | None:
    return None if limit is None else Bar(limit)


def _line(sender: subprocess.Popen[str]) -> str:
    assert sender.stdout is not None
    line = sender.stdout.readline()
    if not line:
        raise RuntimeError("a sender of facts has ended")
    return line


def _write(sender: subprocess.Popen[str], line: str) -> None:
    assert sender.stdin is not None
    sender.stdin.write(line)
    sender.stdin.flush()


if __name__ == "__main__":
    report(measure)

"""What a job can notice of the guest: import time, memory, modules, time per hook, its thread.

The baseline of a hook is a span of OpenTelemetry around the same call. The thread is timed in a
process that computes, once a second as in a job.
"""

from __future__ import annotations

import tempfile
import time

import torch
from opentelemetry.sdk.trace import TracerProvider

import dfx_agent.shim as dfx
from bench.estimates import bootstrap_interval, difference_of_medians, median
from bench.guest_footprint import footprint
from bench.hooked_calls import CALLS_PER_BLOCK, Added, added_by_hooks, single_rank
from bench.measurement import Baseline, Result, of_samples, report
from bench.timed_in_place import SETTLE_SECONDS, watch_seconds
from dfx_agent.shim.torch.hooks import torch_hooks

WATCH_WINDOW_SECONDS = 2.0


def measure(*, quick: bool) -> list[Result]:
    torch.set_num_threads(1)
    rows = [_added(name, added) for name, added in _added_by_hooks(quick=quick).items()]
    rows += footprint(quick=quick)
    with tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm") as folder:
        dfx.init(run="bench", directory=folder)
        with single_rank():
            rows.append(_watch_thread(2 if quick else 8))
        dfx.shutdown()
    return rows


def _added_by_hooks(*, quick: bool) -> dict[str, Added]:
    with tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm") as folder:
        dfx.init(run="bench", directory=folder)
        torch_hooks._stop_watching()  # its search for models would fall into the blocks
        start_span = TracerProvider().get_tracer("bench").start_as_current_span
        added = added_by_hooks(start_span, quick=quick)
        dfx.shutdown()
    return added


def _added(name: str, added: Added) -> Result:
    low, high = bootstrap_interval(difference_of_medians, added.hooked, added.plain)
    telemetry = difference_of_medians(added.spanned, added.plain) / 1e3
    return Result(
        name=f"added by the guest, {name}",
        value=added.ns / 1e3,
        unit="us",
        n=len(added.hooked),
        spread={"low": low / 1e3, "high": high / 1e3},
        baseline=Baseline("added by an OpenTelemetry span", telemetry),
        note=(
            f"difference of medians, 95 % interval; the call takes {median(added.plain) / 1e3:.0f} "
            f"us; blocks of {CALLS_PER_BLOCK}"
        ),
    )


def _watch_thread(num_windows: int) -> Result:
    """Windows in which the main thread computes; one-off work is over before the first."""
    matrix = torch.zeros(128, 128)
    _compute(matrix, SETTLE_SECONDS)
    shares = []
    for _ in range(num_windows):
        begin, before = time.monotonic(), watch_seconds()
        _compute(matrix, WATCH_WINDOW_SECONDS)
        shares.append(1e3 * (watch_seconds() - before) / (time.monotonic() - begin))
    note = f"processor time, windows of {WATCH_WINDOW_SECONDS:g} s; 1 ms/s is 0.1 % of a core"
    return of_samples("guest's own thread", shares, "ms/s", note=note)


def _compute(matrix: torch.Tensor, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        torch.mm(matrix, matrix)


if __name__ == "__main__":
    report(measure)

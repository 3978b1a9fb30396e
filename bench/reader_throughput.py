"""Records per second that one core reads from a full ring, and reads and folds."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import dfx_agent.shim as dfx
from bench.estimates import median
from bench.measurement import Bar, Baseline, Result, of_samples, report
from bench.workload import step_records
from dfx_agent.node.process import Process
from dfx_agent.node.segments.reader import Follower
from dfx_agent.shim import recorder
from dfx_agent.wire import SegmentReader
from dfx_agent.wire.layout import DEFAULT_NUM_RECORDS, RING_OFFSET
from dfx_agent.wire.records import RECORD

NUM_STEPS = DEFAULT_NUM_RECORDS // 1024  # of about 1,000 records: nothing is overwritten


def measure(*, quick: bool) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm") as folder:
        path = _write(folder)
        num_records = len(_read(path))
        ways = {
            "SegmentReader.poll": lambda: len(_read(path)),
            "read and folded into time and scalars": lambda: _fold(path),
            "struct.iter_unpack of the same bytes": lambda: _unpack(path, num_records),
        }
        rates = _interleaved(ways, num_records, num_rounds=10 if quick else 100)
        dfx.shutdown()
    read, folded, unpacked = ways
    baseline = Baseline(unpacked, median(rates[unpacked]))
    note = f"a backlog of {num_records:,} records of training steps"
    return [
        of_samples(
            read,
            rates[read],
            "records/s",
            baseline=baseline,
            bar=Bar(1e6, at_least=True),
            note=note,
        ),
        of_samples(folded, rates[folded], "records/s", baseline=baseline, note=note),
    ]


def _write(folder: str) -> str:
    dfx.init(run="bench", rank=0, directory=folder)
    for step in range(1, NUM_STEPS + 1):
        for _ in step_records(step):
            pass
    assert recorder.current is not None
    return recorder.current.path


def _read(path: str) -> list[object]:
    reader = SegmentReader(path)
    records: list[object] = []
    while batch := reader.poll():
        records.extend(batch)
    reader.close()
    return records


def _fold(path: str) -> int:
    """As the agent does it: the second poll accounts what the first one read."""
    process = Process(Follower(path))
    process.poll()
    process.poll()
    process.follower.finish()
    return process.follower.num_read


def _unpack(path: str, num_records: int) -> int:
    with Path(path).open("rb") as file:
        file.seek(RING_OFFSET)
        return len(list(RECORD.iter_unpack(file.read(num_records * RECORD.size))))


def _interleaved(
    ways: dict[str, Callable[[], int]], num_records: int, num_rounds: int
) -> dict[str, list[float]]:
    """Records per second of each pass; the first round is warm-up."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(num_rounds + 1):
        for name in random.sample(list(ways), len(ways)):
            begin = time.perf_counter()
            num_read = ways[name]()
            elapsed = time.perf_counter() - begin
            if num_read != num_records:
                raise RuntimeError(f"{name} saw {num_read} of {num_records} records")
            if number:
                rates[name].append(num_read / elapsed)
    return rates


if __name__ == "__main__":
    report(measure)

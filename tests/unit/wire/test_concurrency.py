"""Threads, forks and kill -9 against one segment, each with a reader beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dfx_agent.wire import Identity, SegmentReader, SegmentWriter
from dfx_agent.wire.records import Record

ROOT = Path(__file__).resolve().parents[3]
NUM_THREADS, NUM_EACH = 4, 50_000

READER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from dfx_agent.wire import SegmentReader
reader, seen, bad = SegmentReader(sys.argv[2]), [set() for _ in range(4)], 0
print("ready", flush=True)
closed = False
while True:
    done, closed = closed, reader.live_words()[0] == 2
    records = reader.poll()
    for _, t0, t1, value, step, span, parent, thread, kind, name, _ in records:
        ok = t1 == t0 + 1 and value == t0 * 2 and step == -t0 and span == parent == t0
        bad += not (ok and kind == name == t0 % 65521 and t0 not in seen[thread])
        seen[thread].add(t0)
    if done and not records:  # one poll reads a bounded number
        break
    time.sleep(float(sys.argv[3]))
print(sum(map(len, seen)), reader.ring.num_read, reader.ring.num_lost, reader.ring.num_pending, bad)
"""


def write_consistent(emit, thread: int, count: int) -> None:
    for n in range(1, count + 1):
        emit(n, n + 1, n * 2.0, -n, n, n, thread, n % 65521, n % 65521)


@pytest.mark.parametrize(
    ("num_records", "pause_seconds"), [(1 << 18, 0.01), (1 << 12, 0.0), (64, 0.0), (1 << 12, 0.1)]
)
def test_4_threads_every_record_is_read_once_intact_or_counted(dfx_dir, num_records, pause_seconds):
    segment = SegmentWriter(str(dfx_dir), Identity(), num_records=num_records)
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(ROOT), segment.path, str(pause_seconds)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert reader.stdout.readline() == "ready\n"
        threads = [
            threading.Thread(target=write_consistent, args=(segment.emit, i, NUM_EACH))
            for i in range(NUM_THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        segment.finish()
        output, _ = reader.communicate(timeout=60)
    finally:
        reader.kill()
        reader.wait()
        segment.close()
    num_distinct, num_read, num_lost, num_pending, num_bad = map(int, output.split())
    assert num_bad == 0
    assert num_distinct == num_read
    assert num_pending == 0
    assert num_read + num_lost == NUM_THREADS * NUM_EACH
    if num_records == 1 << 18:
        assert num_lost == 0


FORK = """
import os, sys
sys.path.insert(0, sys.argv[1])
from dfx_agent.wire import Identity, SegmentWriter
parent = SegmentWriter(sys.argv[2], Identity(run="parent"), num_records=64)
parent.emit(1, 2, 0.0, 0, 0, 0, 0, 3, 0)
pid = os.fork()
if not pid:
    parent.close()
    child = SegmentWriter(sys.argv[2], Identity(run="child"), num_records=64)
    for n in range(10):
        child.emit(n, n, 0.0, 0, 0, 0, 0, 4, 0)
    os._exit(0)
os.waitpid(pid, 0)
parent.emit(3, 4, 0.0, 0, 0, 0, 0, 3, 0)
"""


def read_all(folder: Path) -> dict[str, list[Record]]:
    found = {}
    for path in folder.glob("*.seg"):
        reader = SegmentReader(str(path))
        found[reader.identity().run] = reader.poll()
        reader.close()
    return found


def test_a_forked_child_writes_to_its_own_segment_only(dfx_dir):
    command = [sys.executable, "-W", "ignore", "-c", FORK, str(ROOT), str(dfx_dir)]
    subprocess.run(command, check=True, timeout=30)
    found = read_all(dfx_dir)
    assert [r[:3] for r in found["parent"]] == [(1, 1, 2), (2, 3, 4)]
    assert [r[1] for r in found["child"]] == list(range(10))


TIGHT_LOOP = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from dfx_agent.wire import Identity, SegmentWriter
segment = SegmentWriter(sys.argv[2], Identity(), num_records=1 << 12)
name = segment.add_name("rollout")
segment.inflight.enter(7, 42, 1, 0, 9, 1, name)
def loop():
    n = 0
    while True:
        n += 1
        slot = segment.inflight.enter(n, n, 5, 1, 9, 2, name)
        segment.emit(n, n + 1, n * 2.0, -n, n & 0xFFFFFFFF, n & 0xFFFFFFFF, 1, 2, name)
        segment.inflight.leave(slot)
threading.Thread(target=loop, daemon=True).start()
print("go", flush=True)
loop()
"""


def test_kill_9_in_a_tight_loop_leaves_everything_readable(dfx_dir):
    for trial in range(20):
        folder = dfx_dir / str(trial)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", TIGHT_LOOP, str(ROOT), str(folder)],
            stdout=subprocess.PIPE,
        )
        process.stdout.readline()
        time.sleep(0.003 * trial)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        (path,) = folder.glob("*.seg")
        reader = SegmentReader(str(path))
        records = []
        while batch := reader.poll():
            records += batch
        lost = reader.ring.num_lost
        records += reader.ring.drain()
        assert all(r[2] == r[1] + 1 and r[3] == 2 * r[1] and r[4] == -r[1] for r in records)
        assert all(r[5] == r[6] == r[1] and reader.name(r[9]) == "rollout" for r in records)
        # a thread that has taken a number and not written leaves a slot, one per thread at most
        assert reader.ring.num_lost - lost <= 2
        overwritten = max(0, records[-1][0] - 4096) if records else 0
        assert 0 <= lost - overwritten <= 2, "a half-written slot was an older record once"
        outer = [r for r in reader.inflight() if r[5] == 1]
        assert [(r[1], r[4], reader.name(r[9])) for r in outer] == [(7, 42, "rollout")]
        assert len(reader.inflight()) <= 3
        reader.close()


def test_a_thread_reader_next_to_a_writer_in_one_process(dfx_dir):
    segment = SegmentWriter(str(dfx_dir), Identity(), num_records=1 << 10)
    reader = SegmentReader(segment.path)
    stop = threading.Event()
    seen: list[int] = []

    def follow() -> None:
        while not stop.is_set():
            seen.extend(r[0] for r in reader.poll())
        seen.extend(r[0] for r in reader.poll())

    thread = threading.Thread(target=follow)
    thread.start()
    write_consistent(segment.emit, 0, NUM_EACH)
    stop.set()
    thread.join()
    assert seen == sorted(set(seen))
    assert len(seen) + reader.ring.num_lost == NUM_EACH
    assert os.path.getsize(segment.path) > 0
    reader.close()
    segment.close()

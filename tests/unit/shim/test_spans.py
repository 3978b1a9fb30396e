"""Spans: they always close, never swallow, and keep threads, tasks and forks apart."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import dfx_agent.shim as dfx
from dfx_agent.shim import recorder, span_writer
from dfx_agent.shim.lifecycle import guest
from dfx_agent.wire import SegmentReader
from dfx_agent.wire.records import (
    FAILED,
    KIND_MASK,
    LOOP_KINDS,
    NO_STEP,
    SCALAR,
    STAGE,
    WAIT,
    Record,
)

ROOT = Path(__file__).resolve().parents[3]


def reset() -> None:
    guest.stop()
    guest._is_refused = False
    span_writer.step_of_context.set(None)
    span_writer.innermost.set(None)


@pytest.fixture
def reader(dfx_dir) -> Iterator[SegmentReader]:
    reset()
    assert dfx.init(run="r", role="trainer", rank=0)
    with closing(SegmentReader(recorder.current.path)) as segment:
        yield segment
    reset()


def names(reader: SegmentReader) -> list[str]:
    return [reader.name(r[9]) or "" for r in reader.poll()]


def parents(reader: SegmentReader, records: list[Record]) -> list[tuple[str, str]]:
    """(name, name of the parent) of every span."""
    by_id = {r[5]: reader.name(r[9]) for r in records}
    return [(reader.name(r[9]) or "", by_id.get(r[6], "") or "") for r in records]


def test_nested_spans_record_parents_and_times(reader):
    with dfx.stage("outer"):
        with dfx.wait("inner"):
            time.sleep(0.01)
        with dfx.stage("second"):
            pass
    inner, second, outer = records = reader.poll()
    assert parents(reader, records) == [("inner", "outer"), ("second", "outer"), ("outer", "")]
    assert [r[8] for r in records] == [WAIT, STAGE, STAGE]
    assert outer[1] <= inner[1] <= inner[2] <= second[1] <= second[2] <= outer[2]
    assert inner[2] - inner[1] >= 9_000_000


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_span_closes_on_any_exception_and_lets_it_pass(reader, error):
    with pytest.raises(error, match="mine"), dfx.stage("outer"), dfx.wait("inner"):
        raise error("mine")
    records = reader.poll()
    assert parents(reader, records) == [("inner", "outer"), ("outer", "")]
    assert all(r[8] & FAILED for r in records)
    assert [r[8] & KIND_MASK for r in records] == [WAIT, STAGE]
    assert reader.inflight() == []
    assert span_writer.innermost.get() is None


def test_one_object_used_again_and_nested_in_itself(reader):
    span = dfx.stage("s")
    for _ in range(2):
        with span:
            pass
    with span, span, span:
        assert len(reader.inflight()) == 3
    records = reader.poll()
    assert len({r[5] for r in records}) == 5
    third, second, first = records[2:]
    assert (third[6], second[6], first[6]) == (second[5], first[5], 0)


def test_one_object_shared_by_threads_has_a_time_for_each(reader):
    """Thread A enters, B enters, A leaves, B leaves: each record has its own thread's times."""
    span, stamps = dfx.stage("shared"), {}
    entered = threading.Event()
    left = threading.Event()

    def first() -> None:
        begin = time.monotonic_ns()
        with span:
            assert entered.wait(5)
        stamps[threading.get_native_id()] = begin, time.monotonic_ns()
        left.set()

    def second() -> None:
        time.sleep(0.05)
        begin = time.monotonic_ns()
        with span:
            entered.set()
            assert left.wait(5)
            time.sleep(0.05)
        stamps[threading.get_native_id()] = begin, time.monotonic_ns()

    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for record in reader.poll():
        begin, end = stamps[record[7]]
        assert begin <= record[1] < begin + 20_000_000
        assert end - 20_000_000 < record[2] <= end


def test_one_object_shared_by_tasks_leaves_no_foreign_parent_behind(reader):
    span = dfx.stage("shared")

    async def task(name: str, first_seconds: float, second_seconds: float) -> None:
        with dfx.stage(name):
            await asyncio.sleep(first_seconds)
            with span:
                await asyncio.sleep(second_seconds)
            with dfx.stage(f"after {name}"):
                pass

    async def main() -> None:
        await asyncio.gather(task("a", 0.0, 0.02), task("b", 0.01, 0.04))

    asyncio.run(main())
    found = parents(reader, reader.poll())
    assert sorted(found) == [
        ("a", ""), ("after a", "a"), ("after b", "b"), ("b", ""), ("shared", "a"), ("shared", "b"),
    ]  # fmt: skip


def test_1000_tasks_with_nested_spans_have_the_right_parents(reader):
    async def task(n: int) -> None:
        with dfx.stage(f"outer-{n}"):
            await asyncio.sleep(0.001 * (n % 7))
            with dfx.wait(f"middle-{n}"):
                await asyncio.sleep(0.001 * (n % 5))
                with dfx.stage(f"inner-{n}"):
                    await asyncio.sleep(0)

    async def main() -> None:
        with dfx.stage("root"):
            await asyncio.gather(*(task(n) for n in range(1000)))

    asyncio.run(main())
    # where this takes more than a second, the loop is asked how late it is
    records = [record for record in reader.poll() if record[8] not in LOOP_KINDS]
    want = {("root", "")}
    for n in range(1000):
        want |= {
            (f"outer-{n}", "root"),
            (f"middle-{n}", f"outer-{n}"),
            (f"inner-{n}", f"middle-{n}"),
        }
    assert len(records) == 3001
    assert set(parents(reader, records)) == want
    assert reader.inflight() == []


def test_functions_methods_and_coroutines_as_decorated(reader):
    class Trainer:
        @dfx.stage("method")
        def train(self, x, *, y):
            """Doc."""
            return x + y

        @staticmethod
        @dfx.stage("static")
        def of(x):
            return x

        @classmethod
        @dfx.wait("class")
        def make(cls, x):
            return cls.__name__, x

    @dfx.stage("coroutine")
    async def fetch(x):
        await asyncio.sleep(0.02)
        return x

    assert Trainer().train(1, y=2) == 3
    assert (Trainer.of(4), Trainer.make(5)) == (4, ("Trainer", 5))
    assert asyncio.run(fetch(6)) == 6
    assert asyncio.iscoroutinefunction(fetch)
    assert (Trainer.train.__name__, Trainer.train.__doc__) == ("train", "Doc.")
    records = reader.poll()
    assert [reader.name(r[9]) for r in records] == ["method", "static", "class", "coroutine"]
    assert records[-1][2] - records[-1][1] >= 19_000_000


def test_a_decorated_function_that_raises_and_recurses(reader):
    @dfx.stage("f")
    def f(n):
        return f(n - 1) if n else 1 / 0

    with pytest.raises(ZeroDivisionError):
        f(3)
    records = reader.poll()
    assert [r[8] for r in records] == [STAGE | FAILED] * 4
    assert records[0][6] == records[1][5]


def covered_ns(reader: SegmentReader) -> int:
    return sum(r[2] - r[1] for r in reader.poll())


def test_a_decorated_generator_is_timed_while_its_body_runs(reader):
    """A span that closes when the generator object is made would say that the work took nothing."""

    @dfx.stage("batches")
    def batches():
        for n in range(3):
            time.sleep(0.01)
            yield n

    assert list(batches()) == [0, 1, 2]
    assert covered_ns(reader) >= 29_000_000
    assert span_writer.innermost.get() is None


def test_a_decorated_async_generator_is_timed_while_its_body_runs(reader):
    @dfx.stage("batches")
    async def batches():
        for n in range(3):
            await asyncio.sleep(0.01)
            yield n

    async def main() -> list[int]:
        return [n async for n in batches()]

    assert asyncio.run(main()) == [0, 1, 2]
    assert covered_ns(reader) >= 29_000_000


def test_a_step_set_in_main_is_seen_by_threads_and_tasks_keep_theirs(reader):
    async def task(name: str, go: asyncio.Event) -> None:
        await go.wait()
        dfx.scalar(name, 0.0)

    async def main() -> None:
        go = asyncio.Event()
        dfx.set_step(1)
        one = asyncio.create_task(task("made in 1", go))
        dfx.set_step(2)
        two = asyncio.create_task(task("made in 2", go))
        go.set()
        await asyncio.gather(one, two)
        thread = threading.Thread(target=lambda: dfx.scalar("thread", 0.0))
        thread.start()
        thread.join()
        await asyncio.to_thread(dfx.scalar, "to_thread", 0.0)

    dfx.scalar("before", 0.0)
    asyncio.run(main())
    steps = {reader.name(r[9]): r[4] for r in reader.poll() if r[8] == SCALAR}
    assert steps == {
        "before": NO_STEP, "made in 1": 1, "made in 2": 2, "thread": 2, "to_thread": 2,
    }  # fmt: skip


def test_a_running_thread_sees_the_current_step(reader):
    go, done = threading.Event(), threading.Event()

    def work() -> None:
        with dfx.stage("one"):
            done.set()
            assert go.wait(5)
        with dfx.stage("two"):
            pass

    dfx.set_step(1)
    thread = threading.Thread(target=work)
    thread.start()
    assert done.wait(5)
    dfx.set_step(2)
    go.set()
    thread.join()
    assert {reader.name(r[9]): r[4] for r in reader.poll() if r[8] == STAGE} == {"one": 1, "two": 2}


def test_spans_of_an_earlier_recorder_are_released(reader, dfx_dir):
    with dfx.stage("old"):
        dfx.shutdown()
        dfx.init()
        with closing(SegmentReader(recorder.current.path)) as fresh:
            with dfx.stage("new"):
                pass
            (record,) = fresh.poll()
            assert record[6] in (0, record[5]), "a parent from another segment means nothing here"
    with closing(SegmentReader(recorder.current.path)) as fresh, dfx.stage("later"):
        assert [r[6] for r in fresh.inflight()] == [0]
    assert reader.poll() == []


FORK = """
import os, sys
import dfx_agent.shim as dfx
dfx.init(run="r", role="trainer", rank=3)
dfx.set_step(5)
for _ in range(3):
    with dfx.stage("warmup"):
        pass
with dfx.stage("open over fork"):
    pid = os.fork()
    for n in range(8):
        with dfx.stage("child" if not pid else "parent"):
            with dfx.wait("inner"):
                pass
if not pid:
    with dfx.stage("child after"):
        pass
    sys.exit(0)
os.waitpid(pid, 0)
dfx.scalar("end", 1.0)
"""

MULTIPROCESSING = """
import multiprocessing, sys
import dfx_agent.shim as dfx
def work(n):
    dfx.init()
    with dfx.stage("work"):
        dfx.scalar("n", float(n))
if __name__ == "__main__":
    dfx.init(run="r", role="trainer", rank=0)
    with dfx.stage("main"):
        context = multiprocessing.get_context(sys.argv[1])
        children = [context.Process(target=work, args=(n,)) for n in range(3)]
        for child in children: child.start()
        for child in children: child.join()
    assert all(child.exitcode == 0 for child in children)
"""


def run_script(tmp_path: Path, source: str, *args: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(source)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", str(script), *args]
    done = subprocess.run(
        command, env=environment, timeout=60, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def segments(folder: Path) -> dict[str, list[tuple[int, list[Record], SegmentReader]]]:
    """Role -> (state, records, reader) of every segment."""
    found: dict[str, list] = {}
    for path in sorted(folder.glob("*.seg")):
        reader = SegmentReader(str(path))
        row = reader.live_words()[0], reader.poll(), reader
        found.setdefault(reader.identity().role, []).append(row)
    return found


def test_a_forked_child_has_its_own_segment_and_the_parent_s_is_whole(dfx_dir, tmp_path):
    run_script(tmp_path, FORK)
    found = segments(dfx_dir)
    ((state, records, reader),) = found["trainer"]
    assert state == 2
    spans = parents(reader, [r for r in records if r[8] in (STAGE, WAIT)])
    assert spans.count(("parent", "open over fork")) == 8
    assert ("open over fork", "") in spans
    ((child_state, child, child_reader),) = found["trainer_child"]
    assert child_state == 2
    assert child_reader.identity().rank == 3
    assert {child_reader.name(r[9]) for r in child} == {"child", "inner", "child after"}
    assert all(r[4] == 5 for r in child), "the step goes on in the child"
    own = {r[5]: child_reader.name(r[9]) for r in child}
    for record in child:
        is_inner = child_reader.name(record[9]) == "inner"
        assert (own[record[6]] == "child") if is_inner else (record[6] == 0)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_children_record_and_end_in_order(dfx_dir, tmp_path, method):
    run_script(tmp_path, MULTIPROCESSING, method)
    rows = [row for rows in segments(dfx_dir).values() for row in rows]
    assert len(rows) == 4
    assert [state for state, _, _ in rows] == [2] * 4
    values = [r[3] for _, records, _ in rows for r in records if r[8] == SCALAR]
    assert sorted(values) == [0.0, 1.0, 2.0]


KILLED = """
import dfx_agent.shim as dfx, os, signal, threading, time
dfx.init(run="r")
dfx.set_step(12)
def work():
    with dfx.wait("queue"):
        time.sleep(60)
threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
with dfx.stage("actor_update"), dfx.stage("forward"), dfx.wait("collective"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_kill_9_leaves_what_was_open(dfx_dir, tmp_path):
    (tmp_path / "s.py").write_text(KILLED)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(tmp_path / "s.py")], env=environment, check=False)
    assert done.returncode == -9
    (path,) = dfx_dir.glob("*.seg")
    with closing(SegmentReader(str(path))) as reader:
        found = sorted(reader.inflight(), key=lambda r: r[5])
        open_names = [reader.name(r[9]) for r in found]
        assert open_names == ["queue", "actor_update", "forward", "collective"]
        assert {r[4] for r in found} == {12}
        assert [r[6] for r in found] == [0, 0, found[1][5], found[2][5]]
        assert reader.live_words()[0] == 1

"""The guest writes where its threads stand: bounded, private, and never to the job's harm."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dfx_agent.node.segments import stacks as agent_stacks
from dfx_agent.shim import stacks
from dfx_agent.shim.stacks import MAX_BYTES, StackWriter, write_stacks

ROOT = Path(__file__).resolve().parents[3]
SECOND = 10**9
BEGIN = 1000 * SECOND


@contextmanager
def waiting_threads(num_threads: int, depth: int = 0) -> Iterator[None]:
    release = threading.Event()

    def dive(left: int) -> None:
        if left:
            dive(left - 1)
        else:
            release.wait(30)

    threads = [
        threading.Thread(target=dive, args=(depth,), name=f"worker {i}") for i in range(num_threads)
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    try:
        yield
    finally:
        release.set()
        for thread in threads:
            thread.join()


def written(segment: Path) -> str:
    return segment.with_suffix(".stacks").read_text()


def test_all_threads_stand_in_the_file_with_their_names(tmp_path):
    segment = tmp_path / "1-a.seg"
    with waiting_threads(2):
        assert write_stacks(str(segment))
        num_threads = len(sys._current_frames())  # pytest-xdist has one of its own
    read = agent_stacks.read_stacks(str(segment), 0)
    assert read is not None
    assert len(read.threads) == num_threads
    assert {t.name for t in read.threads if not t.is_main} >= {"worker 0", "worker 1"}
    main = read.main
    assert (main.name, main.native_id) == ("MainThread", os.getpid())
    # the innermost that is the job's: our own frames are left out
    assert main.frames[-1].function == "test_all_threads_stand_in_the_file_with_their_names"
    worker = next(t for t in read.threads if t.name == "worker 0")
    assert [f.function for f in worker.frames if f.function == "dive"] == ["dive"]
    assert stat.S_IMODE(segment.with_suffix(".stacks").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["1-a.stacks"]


def test_the_main_thread_is_stored_if_there_is_too_much(tmp_path):
    segment = tmp_path / "1-a.seg"
    with waiting_threads(60, depth=80):
        assert write_stacks(str(segment))
    assert segment.with_suffix(".stacks").stat().st_size <= MAX_BYTES
    assert agent_stacks.parse(written(segment)).main is not None


def test_a_file_from_before_is_replaced_whole(tmp_path):
    segment = tmp_path / "1-a.seg"
    segment.with_suffix(".stacks").write_text("old " * 100_000)
    assert write_stacks(str(segment))
    assert "old" not in written(segment)


def test_what_cannot_be_written_is_passed_over_in_silence(tmp_path, capfd):
    assert not write_stacks(str(tmp_path / "missing" / "1-a.seg"))
    (tmp_path / "1-a.stacks.tmp").symlink_to(tmp_path / "elsewhere")
    assert not write_stacks(str(tmp_path / "1-a.seg"))
    assert not (tmp_path / "elsewhere").exists()
    assert capfd.readouterr() == ("", "")


def test_a_lock_of_threading_that_the_job_holds_does_not_stop_it(tmp_path):
    """A fork handler of the job may hold it for long."""
    with threading._active_limbo_lock:
        assert write_stacks(str(tmp_path / "1-a.seg"))


def test_a_thread_with_a_strange_name_does_not_stop_it(tmp_path):
    class Strange(threading.Thread):
        @property
        def name(self) -> str:
            raise RuntimeError("mine")

        @name.setter
        def name(self, value: str) -> None:
            pass

    release = threading.Event()
    thread = Strange(target=release.wait)
    thread.start()
    assert write_stacks(str(tmp_path / "1-a.seg"))
    release.set()
    thread.join()


def test_it_changes_nothing_and_imports_nothing(tmp_path):
    """Whether faulthandler is on, and its one timer, stay the job's affair."""
    code = (
        "import faulthandler, sys\n"
        "from dfx_agent.shim.stacks import write_stacks\n"
        "before = set(sys.modules)\n"
        "print(write_stacks(sys.argv[1]), faulthandler.is_enabled(), set(sys.modules) - before)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code, str(tmp_path / "1-a.seg")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ran.stdout.split() == ["True", "False", "set()"]


@pytest.fixture
def num_written(monkeypatch) -> list[str]:
    calls: list[str] = []
    monkeypatch.setattr(stacks, "write_stacks", lambda path: calls.append(path) or True)
    return calls


def looks(writer: StackWriter, mark: object, seconds: range) -> list[int]:
    """Seconds after which it wrote."""
    return [s for s in seconds if writer.write_if_stuck(BEGIN + s * SECOND, mark, "1-a.seg")]


@pytest.mark.parametrize("mark", [BEGIN, None])
def test_it_writes_while_nothing_begins(num_written, mark):
    assert looks(StackWriter(), mark, range(1000)) == [10, 30, 60, 120, 300, 600, 900]


def test_a_job_that_makes_progress_writes_nothing(num_written):
    writer = StackWriter()
    for second in range(100):
        looks(writer, BEGIN + second * SECOND, range(second, second + 1))
    assert num_written == []


def test_the_next_stuck_place_starts_again(num_written):
    writer = StackWriter()
    assert looks(writer, BEGIN, range(40)) == [10, 30]
    assert looks(writer, BEGIN + 40 * SECOND, range(41, 55)) == [51]

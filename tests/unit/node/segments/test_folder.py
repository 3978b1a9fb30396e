"""The folder: what is found, who may remove, whether a process lives."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dfx_agent.node.segments.reader import Folder, Follower
from dfx_agent.wire import Identity, SegmentError, SegmentWriter, layout
from dfx_agent.wire.records import STAGE

ROOT = Path(__file__).resolve().parents[4]
WRITER = """
import sys, time
from dfx_agent.wire import Identity, SegmentWriter
segment = SegmentWriter(sys.argv[1], Identity(run="r"), num_records=64)
print(segment.path, flush=True)
time.sleep(60)
"""
AGENT = """
import sys
from dfx_agent.node.segments.reader import Folder
folder = Folder(sys.argv[1])
print(folder.reaps, flush=True)
sys.stdin.read()
"""


def start(code: str, folder: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def patch_preamble(path: Path, **changes) -> None:
    index = {"pid": 13, "start_ticks": 14, "namespace": 15, "boot_id": 16}
    data = path.read_bytes()
    fields = list(layout.PREAMBLE.unpack(data[: layout.PREAMBLE.size]))
    for name, value in changes.items():
        fields[index[name]] = value
    with path.open("r+b") as file:
        file.write(layout.PREAMBLE.pack(*fields))


@pytest.fixture
def path(dfx_dir) -> Path:
    return Path(SegmentWriter(str(dfx_dir), Identity(run="r"), num_records=64).path)


def liveness(path: Path) -> str:
    follower = Follower(str(path))
    try:
        return follower.liveness()
    finally:
        follower.finish()


def test_a_running_process_is_live(path):
    assert liveness(path) == "live"


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"start_ticks": 1}, "died"),
        ({"pid": 2**32 - 1}, "died"),
        ({"pid": 0}, "died"),
        ({"boot_id": b"x" * 16}, "died"),
        ({"namespace": 1}, "unknown"),
        ({"namespace": 1, "boot_id": b"x" * 16}, "died"),
    ],
    ids=str,
)
def test_a_reused_pid_another_boot_or_another_namespace(path, changes, state):
    patch_preamble(path, **changes)
    assert liveness(path) == state


@pytest.mark.parametrize(
    ("word", "state"), [(layout.STATE_CLOSED, "exited"), (layout.STATE_DETACHED, "detached")]
)
def test_an_orderly_end_is_seen_even_while_the_process_lives(path, word, state):
    with path.open("r+b") as file:
        file.seek(layout.STATE_OFFSET)
        file.write(layout.WORD.pack(word))
    assert liveness(path) == state


@pytest.mark.parametrize("asked_before", [True, False])
def test_a_zombie_is_dead(dfx_dir, asked_before):
    process = start(WRITER, dfx_dir)
    follower = Follower(process.stdout.readline().strip())
    if asked_before:
        assert follower.liveness() == "live"
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert follower.liveness() == "died"
    process.communicate()
    assert follower.liveness() == "died"
    follower.finish()


def test_only_what_is_new_and_whole_is_given(dfx_dir, path):
    (dfx_dir / "123-abc.starting").touch()
    (dfx_dir / "notes.txt").touch()
    folder = Folder(str(dfx_dir))
    assert [f.path for f in folder.new_followers()] == [str(path)]
    assert list(folder.new_followers()) == []
    second = SegmentWriter(str(dfx_dir), Identity(), num_records=64)
    assert [f.path for f in folder.new_followers()] == [second.path]
    assert folder.problems == {}
    folder.close()


def test_problems_name_file_and_reason_and_go_with_the_file(dfx_dir, path):
    (dfx_dir / "garbage.seg").write_bytes(os.urandom(5000))
    (dfx_dir / "empty.seg").touch()
    (dfx_dir / "dir.seg").mkdir()
    (dfx_dir / "link.seg").symlink_to(path)
    os.mkfifo(dfx_dir / "fifo.seg")
    folder = Folder(str(dfx_dir))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(dfx_dir / "socket.seg"))
        begin = time.monotonic()
        assert [f.path for f in folder.new_followers()] == [str(path)]
        assert time.monotonic() - begin < 1
    names = {"garbage", "empty", "dir", "link", "fifo", "socket"}
    assert {Path(p).stem for p in folder.problems} == names
    for problem in folder.problems.values():
        assert problem.path in problem.message
        assert "\n" not in problem.message
    (dfx_dir / "garbage.seg").unlink()
    list(folder.new_followers())
    assert {Path(p).stem for p in folder.problems} == names - {"garbage"}
    folder.close()


def test_a_folder_that_went_away_is_said(dfx_dir):
    own = dfx_dir / "own"
    folder = Folder(str(own))
    shutil.rmtree(own)
    assert list(folder.new_followers()) == []
    assert [p.kind for p in folder.problems.values()] == ["folder"]
    own.mkdir(mode=0o700)
    list(folder.new_followers())
    assert folder.problems == {}
    folder.close()


def test_a_folder_of_others_is_refused(dfx_dir):
    dfx_dir.chmod(0o777)
    with pytest.raises(SegmentError, match="private folder"):
        Folder(str(dfx_dir))


def test_a_second_agent_does_not_reap_names_the_first_and_takes_over_when_it_ends(dfx_dir, path):
    first = start(AGENT, dfx_dir)
    assert first.stdout.readline() == "True\n"
    second = Folder(str(dfx_dir))
    assert (second.reaps, second.other_agent_pid) == (False, first.pid)
    second.reap(str(path))
    assert path.exists()
    list(second.new_followers())
    assert not second.reaps
    first.kill()
    first.communicate()
    list(second.new_followers())
    assert (second.reaps, second.other_agent_pid) == (True, None)
    beside = [path.with_suffix(suffix) for suffix in (".stacks", ".flight")]
    for file in beside:
        file.touch()
    second.reap(str(path))
    assert not any(file.exists() for file in (path, *beside))
    assert second.num_reaped == 1
    second.close()


def test_looking_only_takes_no_lock_and_removes_nothing(dfx_dir, path):
    looker = Folder(str(dfx_dir), reap=False)
    list(looker.new_followers())
    looker.reap(str(path))
    assert path.exists()
    assert Folder(str(dfx_dir)).reaps
    looker.close()


@pytest.mark.parametrize("reaps", [True, False])
def test_files_of_a_killed_start_are_removed_after_a_minute(dfx_dir, monkeypatch, reaps):
    old, new = dfx_dir / "1-a.starting", dfx_dir / "2-b.starting"
    old.touch()
    folder = Folder(str(dfx_dir), reap=reaps)
    list(folder.new_followers())
    begin = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: begin + 61)
    new.touch()
    list(folder.new_followers())
    assert (old.exists(), new.exists()) == (not reaps, True)
    folder.close()


def test_a_start_is_not_taken_for_a_killed_one_when_the_wall_clock_is_set(dfx_dir):
    starting = dfx_dir / "1-a.starting"
    starting.touch()
    os.utime(starting, (time.time() - 3600,) * 2)
    folder = Folder(str(dfx_dir))
    list(folder.new_followers())
    list(folder.new_followers())
    assert starting.exists()
    folder.close()


def test_followers_leak_no_descriptors(dfx_dir, path):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        liveness(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_open_spans_are_found_wherever_they_stand_in_the_table(dfx_dir):
    segment = SegmentWriter(str(dfx_dir), Identity(run="r"), num_records=64)
    follower = Follower(segment.path)
    slots = [segment.inflight.enter(10 + n, 0, n + 1, 0, 1, STAGE, 0) for n in range(8)]
    assert [event.span for event in follower.poll().inflight] == [1, 2, 3, 4, 5, 6, 7, 8]
    for slot in (*slots[:3], slots[5]):
        segment.inflight.leave(slot)
    assert [event.span for event in follower.poll().inflight] == [4, 5, 7, 8]
    for slot in (slots[3], slots[4], slots[6], slots[7]):
        segment.inflight.leave(slot)
    assert follower.poll().inflight == []

"""Folders of others: read without harm, never written to; folders of ours: only ours."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from job_scene import Job, run_row

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.agent.stored import baselines as health_files
from dfx_agent.node.segments import lock, owned_files
from dfx_agent.node.segments.reader import Folder
from dfx_agent.node.segments.stacks import read_stacks
from dfx_agent.wire import SegmentError, SegmentWriter
from dfx_agent.wire.records import SCALAR
from dfx_agent.wire.segment import Identity, open_own_directory

STRANGER = 4242
ROOT = Path(__file__).resolve().parents[4]
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root: it is about root's agent")


@pytest.fixture
def own(dfx_dir, monkeypatch) -> Path:
    """Where this user's state goes, while the folder of segments is another one."""
    folder = dfx_dir.parent / f"{dfx_dir.name}-own"
    monkeypatch.setattr(owned_files, "own_directory", lambda: str(folder))
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


@pytest.fixture
def theirs(dfx_dir, own) -> Path:
    """A stranger's folder of segments, which he may do anything in."""
    os.chown(dfx_dir, STRANGER, STRANGER)
    return dfx_dir


def give_all(folder: Path) -> None:
    for path in folder.rglob("*"):
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


def trained(folder: Path, steps: int = 20) -> Job:
    os.chown(folder, 0, 0)
    job = Job(folder)
    os.chown(folder, STRANGER, STRANGER)
    give_all(folder)
    for step in range(1, steps):
        job.step(step)
        job.point(SCALAR, "actor/entropy", 0.5 + 0.01 * (step % 3), step)
    job.step(steps)
    return job


def entries(folder: Path) -> dict[str, tuple[int, int]]:
    return {p.name: (p.lstat().st_ino, p.lstat().st_mtime_ns) for p in folder.iterdir()}


@needs_root
def test_an_agent_of_root_stores_nothing_in_a_foreign_folder(theirs, own):
    trained(theirs)
    before = entries(theirs)
    agent = Agent(Config(str(theirs)))
    assert run_row(agent, polls=3).signals.step == 19
    agent.stop()
    after = entries(theirs)
    assert after.pop(lock.LOCK_NAME)
    assert after == before
    (stored,) = own.glob("observed/*/signals/*.json")
    assert stored.stat().st_uid == 0
    again = Agent(Config(str(theirs)))
    assert run_row(again).signals.row == 18  # it goes on where the first one was
    again.stop()


@needs_root
@pytest.mark.parametrize("kind", ["symlink", "hardlink", "fifo", "folder"])
@pytest.mark.parametrize("name", ["agent.lock", "signals", "evidence"])
def test_what_a_stranger_plants_is_neither_written_to_nor_waited_for(theirs, name, kind, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    status = victim.stat()
    trained(theirs)
    planted = theirs / name
    if kind == "symlink":
        planted.symlink_to(victim)
    elif kind == "hardlink":
        if victim.stat().st_dev != theirs.stat().st_dev:
            victim = theirs.parent / f"{theirs.name}-victim"
            victim.write_text("precious")
            status = victim.stat()
        planted.hardlink_to(victim)
    elif kind == "fifo":
        os.mkfifo(planted)
    else:
        planted.mkdir(0o777)
    agent = Agent(Config(str(theirs)))
    assert run_row(agent, polls=3).signals.step == 19
    problems = [p.message for p in agent.snapshot().agent.problems]
    agent.stop()
    now = victim.stat()
    assert (victim.read_text(), now.st_uid, now.st_mode) == ("precious", 0, status.st_mode)
    is_reported = name == "agent.lock" and kind != "hardlink"
    assert any("agent.lock" in text and "remove it" in text for text in problems) == is_reported
    if victim.parent == theirs.parent:
        victim.unlink()


@needs_root
def test_the_lock_of_roots_agent_can_be_looked_at_by_the_owner_of_the_folder(theirs):
    folder = Folder(str(theirs))
    folder.announce("http://127.0.0.1:1", "")
    assert folder.reaps
    looks = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from dfx_agent.node.segments import lock
from dfx_agent.shim.attached import is_agent_present
os.setgroups([]); os.setgid({STRANGER}); os.setuid({STRANGER})
print(is_agent_present(sys.argv[1]), lock.holder_of(sys.argv[1])[0].url)
"""
    reported = [sys.executable, "-c", looks, str(theirs)]
    result = subprocess.run(reported, capture_output=True, text=True, check=True).stdout.split()
    assert result == ["True", "http://127.0.0.1:1"]
    assert Folder(str(theirs)).other_agent_pid == os.getpid()
    folder.close()
    result = subprocess.run(reported, capture_output=True, text=True, check=True).stdout.split()
    assert result[0] == "False"
    second = Folder(str(theirs))
    assert second.reaps
    second.close()


@needs_root
def test_a_folder_with_one_users_name_and_another_owner_is_refused(monkeypatch, own):
    path = Path(f"/dev/shm/dfx-{os.getpid() + 10**6}")
    path.mkdir(mode=0o700)
    try:
        os.chown(path, STRANGER, STRANGER)
        with pytest.raises(SegmentError, match="it belongs to uid 4242"):
            Folder(str(path))
        with pytest.raises(SegmentError, match="not a private folder of uid 0"):
            SegmentWriter(str(path), Identity())
        assert list(path.iterdir()) == []
    finally:
        path.rmdir()


@needs_root
def test_a_folder_of_somebody_else_that_all_may_write_to_is_refused(theirs):
    theirs.chmod(0o777)
    with pytest.raises(SegmentError, match="mode 777"):
        Folder(str(theirs))


@needs_root
def test_a_job_of_root_does_not_record_where_somebody_else_could_change_it(theirs):
    with pytest.raises(SegmentError, match="private folder of uid 0"):
        SegmentWriter(str(theirs), Identity())
    assert list(theirs.iterdir()) == []


@needs_root
def test_a_link_in_the_root_of_another_process_leads_nowhere(tmp_path):
    path = Path("/proc/self/root") / tmp_path.relative_to("/")
    inside = f"/proc/{os.getpid()}/root{tmp_path}"
    assert path.exists()
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "dfx").mkdir(mode=0o700)
    with closing(owned_files.open_observed(f"{inside}/real/dfx")) as held:
        assert not held.is_own  # whoever is root in there is not us
    with pytest.raises(SegmentError):
        owned_files.open_observed(f"{inside}/link/dfx")


def test_a_pipe_in_place_of_what_the_guest_writes_is_not_waited_for(dfx_dir):
    path = SegmentWriter(str(dfx_dir), Identity(run="r"), num_records=64).path
    for suffix in (".stacks", ".flight"):
        os.mkfifo(path.removesuffix(".seg") + suffix)
    read: list[object] = []
    with closing(owned_files.open_observed(str(dfx_dir))) as folder:
        thread = threading.Thread(target=lambda: read.append(read_stacks(path, 0, folder)))
        thread.daemon = True
        thread.start()
        thread.join(30)
    assert read == [None]


@pytest.mark.parametrize("kind", ["fifo", "symlink", "folder"])
def test_a_damaged_store_of_baselines_is_reported(dfx_dir, kind, tmp_path):
    folder = dfx_dir / health_files.FOLDER
    folder.mkdir(mode=0o700)
    planted = folder / health_files._name("r")
    if kind == "fifo":
        os.mkfifo(planted)
    elif kind == "symlink":
        (tmp_path / "elsewhere").write_text("{}")
        planted.symlink_to(tmp_path / "elsewhere")
    else:
        planted.mkdir()
    Job(dfx_dir).step(1)
    agent = Agent(Config(str(dfx_dir)))
    assert run_row(agent).run == "r"
    assert any("learning run r again" in p.message for p in agent.snapshot().agent.problems)
    agent.stop()


def test_files_are_replaced_whole_and_private(tmp_path):
    tmp_path.chmod(0o700)
    with closing(owned_files.open_state(str(tmp_path))) as folder:
        (tmp_path / "other").write_text("untouched")
        (tmp_path / "a").symlink_to("other")
        folder.write("a", b"new")
        assert folder.read("a") == b"new"
        assert stat.S_IMODE((tmp_path / "a").lstat().st_mode) == 0o600
        assert (tmp_path / "other").read_text() == "untouched"
        assert sorted(folder.names()) == ["a", "other"]


@pytest.fixture
def small_files():
    """Files of this process may have 4 KiB, as if the file system had no more room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_has_no_room_leaves_nothing_behind(tmp_path, small_files):
    tmp_path.chmod(0o700)
    with closing(owned_files.open_state(str(tmp_path))) as folder:
        folder.write("a", b"old")
        with pytest.raises(OSError, match="File too large"):
            folder.write("a", bytes(10_000))
        assert folder.names() == ["a"]
        assert folder.read("a") == b"old"


def test_half_written_files_of_a_killed_agent_go(tmp_path):
    tmp_path.chmod(0o700)
    for name, age in (("old.tmp", 120), ("new.tmp", 0), ("kept.json", 120)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    with closing(owned_files.open_state(str(tmp_path))) as folder:
        assert [name for _, name in folder.list_latest_first(".json")] == ["kept.json"]
        assert sorted(folder.names()) == ["kept.json", "new.tmp"]


def test_what_the_path_leads_to_later_changes_nothing(tmp_path):
    (tmp_path / "first").mkdir(mode=0o700)
    fd = open_own_directory(str(tmp_path / "first"))
    with closing(owned_files.HeldFolder("first", fd, is_own=True)) as folder:
        (tmp_path / "first").rename(tmp_path / "moved")
        (tmp_path / "other").mkdir()
        (tmp_path / "first").symlink_to(tmp_path / "other")
        folder.write("a", b"x")
    assert (tmp_path / "moved" / "a").read_bytes() == b"x"
    assert list((tmp_path / "other").iterdir()) == []


def test_a_folder_that_was_recreated_is_followed(dfx_dir):
    agent = Agent(Config(str(dfx_dir)))
    agent.poll()
    subprocess.run(["rm", "-rf", str(dfx_dir)], check=True)
    dfx_dir.mkdir(mode=0o700)
    Job(dfx_dir).step(1)
    assert run_row(agent).run == "r"
    assert (dfx_dir / lock.LOCK_NAME).exists()
    agent.stop()

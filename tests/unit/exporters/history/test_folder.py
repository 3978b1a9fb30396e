"""Where history is stored, who may write there, and which files are removed."""

import os

import pytest

from dfx_agent.base.errors import ConfigError
from dfx_agent.exporters.history import folder

DAY = 86400.0
NOW = 1_000_000_000.0


@pytest.fixture
def add_file(tmp_path):
    def add(name, days_old, num_bytes=100):
        path = tmp_path / f"{name}.sqlite"
        path.write_bytes(b"x" * num_bytes)
        os.utime(path, (NOW - days_old * DAY,) * 2)
        return str(path)

    return add


def test_the_default_follows_xdg(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/somewhere")
    assert folder.directory_of("") == "/somewhere/dfx-agent/runs"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert folder.directory_of("").endswith("/.local/state/dfx-agent/runs")


def test_off_is_no_folder():
    assert folder.directory_of("off") is None


@pytest.mark.parametrize("path", ["/dev/shm/history", "/dev/shm"])
def test_a_folder_in_memory_is_refused(path):
    with pytest.raises(ConfigError, match="in memory"):
        folder.directory_of(path)


def test_the_folder_is_private(tmp_path):
    path = tmp_path / "a" / "runs"
    folder.prepare(str(path))
    assert path.stat().st_mode & 0o777 == 0o700
    path.chmod(0o777)
    with pytest.raises(PermissionError, match="not a private folder"):
        folder.prepare(str(path))


def test_a_name_says_run_and_begin_and_is_not_used_twice():
    name = folder.file_name("a/b c", 1e9, ())
    assert name == "a_b_c-20010909T014640.sqlite"
    assert folder.file_name("a/b c", 1e9, {name}) == "a_b_c-20010909T014640.2.sqlite"
    assert folder.file_name("..", 1e9, ()).startswith("run-")


def test_files_that_are_too_old_are_removed(add_file, tmp_path):
    old, new = add_file("old", 91), add_file("new", 89)
    assert folder.remove_old(str(tmp_path), 90, 10**9, (), NOW) == [old]
    assert folder.paths(str(tmp_path)) == [new]


def test_the_oldest_files_are_removed_when_there_is_too_much(add_file, tmp_path):
    files = [add_file(f"r{age}", age) for age in (3, 1, 2)]
    (tmp_path / "r3.sqlite-wal").write_bytes(b"w")
    os.utime(tmp_path / "r3.sqlite-wal", (NOW - 3 * DAY,) * 2)
    assert folder.remove_old(str(tmp_path), 90, 250, (), NOW) == [files[0]]
    assert sorted(os.listdir(tmp_path)) == ["r1.sqlite", "r2.sqlite"]


def test_a_file_in_use_is_never_removed(add_file, tmp_path):
    used, other = add_file("used", 200, 500), add_file("other", 1)
    assert folder.remove_old(str(tmp_path), 90, 400, {used}, NOW) == [other]


def test_other_files_stay(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert folder.remove_old(str(tmp_path), 1, 1, (), NOW) == []
    assert (tmp_path / "notes.txt").exists()


@pytest.mark.parametrize(
    ("kind", "mode"), [("ext4", "WAL"), ("nfs4", "DELETE"), ("fuse.sshfs", "DELETE")]
)
def test_a_network_file_system_has_no_wal(tmp_path, kind, mode):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/a / ext4 rw 0 0\nhost:/x {tmp_path} {kind} rw 0 0\n")
    assert folder.journal_mode(str(tmp_path / "runs"), str(mounts)) == mode

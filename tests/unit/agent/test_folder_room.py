"""A folder without room for one more process is said before its guest is refused."""

import os

import pytest

from dfx_agent.agent.folder_room import room_problems
from dfx_agent.wire import layout

NEEDED = layout.total_bytes(layout.DEFAULT_NUM_RECORDS)


@pytest.fixture
def file_system(monkeypatch):
    """``file_system(free_bytes, free_files, num_files)`` is what the kernel says of each folder."""

    def set_to(free_bytes, free_files, num_files):
        known = (1, 1, 1, 0, free_bytes, num_files, 0, free_files, 0, 255)
        monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result(known))

    return set_to


@pytest.mark.parametrize(
    ("free_bytes", "free_files", "num_files", "says"),
    [
        (NEEDED, 1, 10, None),
        (NEEDED, 0, 0, None),
        (NEEDED - 1, 1, 10, f"KiB are free, a process needs {NEEDED >> 10} KiB"),
        (NEEDED, 0, 10, "no file can be added"),
    ],
    ids=["room", "files are not counted", "no room", "no file"],
)
def test_what_a_process_would_find(file_system, free_bytes, free_files, num_files, says):
    file_system(free_bytes, free_files, num_files)
    found = list(room_problems("/dev/shm/x"))
    assert bool(found) == (says is not None)
    assert all(says in problem.message and problem.kind == "room" for problem in found)


def test_a_folder_that_is_not_there_is_no_news(tmp_path):
    assert list(room_problems(str(tmp_path / "none"))) == []
    assert list(room_problems(str(tmp_path))) == []

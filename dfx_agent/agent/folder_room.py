"""Whether the folder of segments has room for one more process of the job."""

from __future__ import annotations

import os
from collections.abc import Iterator

from dfx_agent.snapshot import SegmentProblem
from dfx_agent.wire import layout

_NEEDED_BYTES = layout.total_bytes(layout.DEFAULT_NUM_RECORDS)


def room_problems(directory: str) -> Iterator[SegmentProblem]:
    """One where a process that starts now would not be observed: its guest is refused.

    The guest says so on the job's stderr alone.
    """
    try:
        status = os.statvfs(directory)
    except OSError:
        return  # the folder itself is a problem, which is said elsewhere
    free_bytes = status.f_bavail * status.f_frsize
    has_files = status.f_favail > 0 or status.f_files == 0  # some file systems do not count them
    if free_bytes >= _NEEDED_BYTES and has_files:
        return
    left = f"{free_bytes >> 10} KiB are free" if has_files else "no file can be added"
    message = (
        f"{directory} is full ({left}, a process needs {_NEEDED_BYTES >> 10} KiB): processes that "
        "start now are not observed; free it or set DFX_DIR to a folder with space"
    )
    yield SegmentProblem(directory, "room", message)

"""The folder of the segments: whether guests can write there, and how much room there is."""

from __future__ import annotations

import os
from collections.abc import Iterator

from dfx_agent.commands.doctor.finding import Finding

_LEAST_FREE_BYTES = 64 << 20  # 64 guests with rings of the usual size
_MIB = 1 << 20


def findings(directory: str) -> Iterator[Finding]:
    """Of the folder, or of the one that it will be made in."""
    place = directory
    while place and not os.path.isdir(place):
        place = os.path.dirname(place.rstrip("/"))
    yield _access(directory, place)
    try:
        status = os.statvfs(place)
    except OSError as error:
        yield Finding("room", "problem", f"{place}: {error.strerror}", "name a folder with --dir")
        return
    free, total = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    text = f"{free // _MIB} MiB free of {total // _MIB} MiB in {place}; a guest takes about 1 MiB"
    if free < _LEAST_FREE_BYTES:
        remedy = "enlarge it (--shm-size of the container), or name another folder with --dir"
        yield Finding("room", "problem", text, remedy)
    else:
        yield Finding("room", "ok", text)


def _access(directory: str, place: str) -> Finding:
    if place != directory:
        if os.access(place, os.W_OK | os.X_OK):
            return Finding("folder", "ok", f"{directory} is made by who comes first")
        remedy = "run as the user of the job, or name another folder with --dir"
        return Finding("folder", "problem", f"{directory} cannot be made in {place}", remedy)
    if os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        return Finding("folder", "ok", f"{directory} can be read and written")
    owner = os.stat(directory).st_uid
    remedy = "run as that user or as root"
    return Finding("folder", "problem", f"{directory} belongs to uid {owner}", remedy)

"""Ray: which processes of this machine belong to one job.

Measured with Ray 2.60. An actor that was started for a job has the job's number in RAY_JOB_ID. An
actor from the pool has "ffffffff" and no other trace of its job. Both have RAY_RAYLET_PID. A driver
has neither in its environment, but an open log whose path contains session and job. A raylet that
the driver has started is its descendant; one of ``ray start`` is not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress

from dfx_agent.attach.processes import HostProcess, ProcessTable
from dfx_agent.base.text import whole_number

ACTOR = "ray::"
_NO_JOB = "ffffffff"
_DRIVER_LOG = re.compile(r"/(session_[^/]+)/logs/python-core-driver-([0-9a-f]{8})")
_SESSION = re.compile(r"session_[\d_-]+")
_KEY = "ray "


def key_of_actor(process: HostProcess) -> str | None:
    """A key that the actors of one job share; None for a process without a job."""
    job = process.environment.get("RAY_JOB_ID", _NO_JOB)
    return None if job == _NO_JOB else _key(process.environment.get("RAY_RAYLET_PID"), job)


def keys_of_driver(process: HostProcess, table: ProcessTable) -> set[str]:
    """Keys of the actors that this process drives on this machine; empty for other processes."""
    folder = f"/proc/{process.pid}/fd"
    with suppress(OSError):
        for number in os.listdir(folder):
            match = _DRIVER_LOG.search(_target(f"{folder}/{number}"))
            if match is not None:
                session, job = match.groups()
                return {_key(raylet.pid, job) for raylet in table if _session(raylet) == session}
    return set()


def drivers(keys: set[str], table: ProcessTable) -> list[HostProcess]:
    """Drivers of the jobs with these keys; examines every Python process if there are any."""
    if not any(key.startswith(_KEY) for key in keys):
        return []
    python = (process for process in table if process.is_python)
    return [process for process in python if keys & keys_of_driver(process, table)]


def pooled_actors(keys: set[str], table: ProcessTable) -> list[HostProcess]:
    """Actors without a job number, of raylets that run only the jobs with these keys."""
    actors = [process for process in table if process.name.startswith(ACTOR)]
    actor_keys = {key for process in actors if (key := key_of_actor(process))}
    of_others = {_raylet_of(key) for key in actor_keys - keys}
    raylets = {_raylet_of(key) for key in keys if key.startswith(_KEY)} - of_others
    pooled = (process for process in actors if key_of_actor(process) is None)
    return [p for p in pooled if p.environment.get("RAY_RAYLET_PID") in raylets]


def run_name(keys: Iterable[str], table: ProcessTable) -> str | None:
    """The run's name as the guest of an actor would choose it; None for a job without Ray."""
    for key in sorted(key for key in keys if key.startswith(_KEY)):
        raylet = _raylet_of(key)
        pid = whole_number(raylet)
        process = None if pid is None else table.get(pid)
        session = process and _session(process)
        if session:
            return f"ray-{session.rpartition('_')[2]}-{key.rpartition(' ')[2]}"
    return None


def _key(raylet: object, job: str) -> str:
    return f"{_KEY}{raylet} {job}"


def _raylet_of(key: str) -> str:
    return key.split(" ")[1]


def _session(process: HostProcess) -> str | None:
    """Session of a raylet, from its arguments; None for other processes."""
    if process.name != "raylet":
        return None
    match = _SESSION.search(" ".join(process.words))
    return match[0] if match else None


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""

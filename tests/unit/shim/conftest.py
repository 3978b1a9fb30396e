"""A process that a guest is brought into, and the lock of its agent."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from attached_host import TRAINING, Host

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def host(dfx_dir: Path) -> Iterator[Host]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("DFX_")}
    host = Host(dfx_dir, {**env, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
    yield host
    host.popen.kill()
    host.popen.wait()
    for pipe in (host.popen.stdin, host.popen.stdout):
        assert pipe
        pipe.close()


@pytest.fixture
def trainer(host: Host) -> Host:
    pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")
    host.do(TRAINING)
    return host


@pytest.fixture
def agent(dfx_dir: Path) -> Iterator[int]:
    """The lock of a living agent on the folder."""
    fd = os.open(dfx_dir / "agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    yield fd
    os.close(fd)

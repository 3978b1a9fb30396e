"""``dfx-agent attach`` from outside: into a container, and to a job of another user."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from live_processes import started, until
from test_attach import attached, interrupt, missing, torchrun

# pid and mount namespaces of its own, and its own /dev/shm: what a container runtime gives a job
CONTAINER = (
    *("unshare", "--pid", "--mount", "--mount-proc", "--fork", "--kill-child"),
    *("sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && "$@"', "sh"),
)
PYTHON = "/usr/bin/python3"
NOBODY = 65534
LOOP = "import time\nwhile True: time.sleep(0.01)"
OTHER_USER = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")


def skip_unless(works: tuple[str, ...], what: str) -> None:
    """A real try: privileges and mounts differ from one build machine to the next."""
    if shutil.which(works[0]) is None:
        pytest.skip(f"no {works[0]} on PATH; Debian: apt-get install util-linux")
    tried = subprocess.run(works, capture_output=True, check=False, cwd="/", timeout=60)
    if tried.returncode:
        pytest.skip(f"{what} is not possible here: {tried.stderr.decode().strip()[-200:]}")


def test_a_job_in_a_container(dfx_dir: Path, tmp_path: Path) -> None:
    skip_unless((*CONTAINER, "true"), "a container")
    with torchrun(tmp_path, *CONTAINER) as job:
        inside = sorted(line["pid"] for line in job.reports())
        assert inside != sorted(job.pids)
        with attached(job.pids[0], tmp_path) as agent:
            with suppress(AssertionError):
                until(lambda: not missing(agent.get("/metrics")), "every rank shows everything")
            assert missing(agent.get("/metrics")) == []
            # nothing of it is in our folder: the segments lie in the container's
            assert list(dfx_dir.glob("*.seg")) == []
            interrupt(agent)
        until(lambda: job.changed() == [[], []], "the guests have left", 15)


def test_a_process_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python that everybody may read: this environment may lie in a folder that only we see."""
    if os.getuid() != 0:
        pytest.skip("only root may attach to a process of another user")
    skip_unless((*OTHER_USER, PYTHON, "--version"), "a program as nobody")
    monkeypatch.delenv("DFX_DIR", raising=False)
    with (
        started([*OTHER_USER, PYTHON, "-c", LOOP], tmp_path) as process,
        attached(process.popen.pid, tmp_path) as agent,
    ):
        folder = Path(f"/dev/shm/dfx-{NOBODY}")
        until(lambda: list(folder.glob(f"{process.popen.pid}-*.seg")), "a segment", 20)
        files = [folder, *folder.glob(f"{process.popen.pid}-*.seg")]
        assert {path.stat().st_uid for path in files} == {NOBODY}
        assert [path.stat().st_mode & 0o777 for path in files] == [0o700, 0o600]
        pid = process.popen.pid
        until(lambda: pid in {rank["pid"] for rank in agent.ranks().values()}, "the agent sees it")
        interrupt(agent)
        assert process.popen.poll() is None

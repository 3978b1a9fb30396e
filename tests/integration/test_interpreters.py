"""The wire and the guest on every interpreter found among Python 3.10 to 3.14."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SELFTEST = Path(__file__).with_name("wire_selftest.py")
VERSIONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
PROBE = """
import sys, sysconfig
print("%d.%d" % sys.version_info[:2], sysconfig.get_config_var("Py_GIL_DISABLED") or 0)
"""


def candidates(version: str) -> list[str]:
    roots = {os.environ.get("PYENV_ROOT", ""), os.path.expanduser("~/.pyenv")} - {""}
    found = [
        str(p)
        for root in roots
        for p in sorted(Path(root).glob(f"versions/{version}*/bin/python{version}"))
    ]
    on_path = shutil.which(f"python{version}")
    return [*found, on_path] if on_path else found


def works(python: str, version: str) -> bool:
    """A pyenv shim may exist for a version that is not installed."""
    done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, check=False)
    return done.stdout.split() == [version, "0"]


def interpreters() -> dict[str, str]:
    found = {"{}.{}".format(*sys.version_info): sys.executable}
    for version in VERSIONS:
        for python in candidates(version):
            if version not in found and works(python, version):
                found[version] = python
    return {version: found[version] for version in VERSIONS if version in found}


FOUND = interpreters()


def selftest(python: str, verb: str, folder: Path) -> dict:
    done = subprocess.run(
        [
            python,
            "-B",
            "-W",
            "error",
            "-W",
            "ignore:.*fork:DeprecationWarning",
            str(SELFTEST),
            verb,
            str(folder),
        ],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{python}: {done.stderr}"
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("segments") / "all"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture(params=VERSIONS)
def python(request) -> str:
    if request.param not in FOUND:
        pytest.skip(f"Python {request.param} is not installed here; found: {', '.join(FOUND)}")
    return FOUND[request.param]


def test_each_interpreter_writes_threads_forks_and_dies(written, python):
    before = len(list(written.glob("*.seg")))
    selftest(python, "write", written)
    assert len(list(written.glob("*.seg"))) == before + 1


def test_each_interpreter_reads_what_each_other_has_written(written, python):
    got = selftest(python, "read", written)["read"]
    assert [role.rsplit(".", 1)[0] for role in got] == sorted(FOUND, key=VERSIONS.index)

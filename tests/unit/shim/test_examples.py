"""The example of each public function of the guest runs as written, before and after ``init``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

RUN_EXAMPLES = """
import doctest
import dfx_agent.shim as dfx

def run(name):
    tests = doctest.DocTestFinder(recurse=False).find(getattr(dfx, name), name, globs={})
    assert sum(len(test.examples) for test in tests) > 1, f"{name} has no example"
    for test in tests:
        assert doctest.DocTestRunner().run(test).failed == 0, name

names = [name for name in dfx.__all__ if name not in ("init", "shutdown")]
for name in (*names, "init", *names, "shutdown", *names):
    run(name)
print(*dfx.__all__)
"""


def test_each_example_runs_without_an_agent(tmp_path: Path) -> None:
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", RUN_EXAMPLES],
        check=False,
        env={**environment, "DFX_DIR": str(tmp_path / "segments")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"init", "stage", "wait", "scalar", "ledger"} <= set(done.stdout.split())
    assert len(list((tmp_path / "segments").glob("*.seg"))) == 1

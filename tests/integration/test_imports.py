"""Every module of the wheel can be imported with what is declared, in `make test-oldest` too."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec

import pytest

WALK = """
import importlib, json, pkgutil, dfx_agent

failed = {}
names = [found.name for found in pkgutil.walk_packages(dfx_agent.__path__, "dfx_agent.")]
for name in names:
    if name.endswith("__main__"):
        continue
    try:
        importlib.import_module(name)
    except ImportError as error:
        failed[name] = str(error)
print(json.dumps([len(names), failed]))
"""
# a job runs this one as its own sitecustomize, beside the files of the guest
IN_A_JOB = {"dfx_agent.attach.preload_sitecustomize"}


@pytest.mark.smoke
def test_every_module_can_be_imported() -> None:
    with tempfile.TemporaryDirectory() as elsewhere:
        ended = subprocess.run(
            [sys.executable, "-c", WALK],
            check=False,
            cwd=elsewhere,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert ended.returncode == 0, ended.stderr
    num_modules, failed = json.loads(ended.stdout.splitlines()[-1])
    without_torch = find_spec("torch") is None
    unexpected = {
        name: reason
        for name, reason in failed.items()
        if name not in IN_A_JOB
        and not (without_torch and name.startswith("dfx_agent.commands.demo."))
    }
    assert unexpected == {}
    assert num_modules > 300

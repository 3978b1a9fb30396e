"""Versions: ours, Python, the kernel, and packages that add something."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from dfx_agent import __version__
from dfx_agent.commands.doctor.finding import Finding

_OLDEST_PYTHON = 3, 10
# package -> what it adds, and the extra that brings it
_ADDS = {
    "torch": ("the demo", "demo"),
    "amdsmi": ("GPUs of AMD", "amd"),
    "py-spy": ("stacks of processes that take no guest", "passive"),
}


def findings() -> Iterator[Finding]:
    """Of this interpreter, which need not be the job's."""
    kernel = os.uname()
    python = ".".join(map(str, sys.version_info[:3]))
    text = f"dfx-agent {__version__}, Python {python}, {kernel.sysname} {kernel.release}"
    is_old = sys.version_info[:2] < _OLDEST_PYTHON
    yield Finding("versions", "problem" if is_old else "ok", f"{text}, {kernel.machine}")
    for package, (adds, extra) in _ADDS.items():
        try:
            yield Finding(package, "ok", f"{version(package)}: {adds}")
        except PackageNotFoundError:
            remedy = f"pip install 'dfx-agent[{extra}]'"
            yield Finding(package, "absent", f"not installed; it adds {adds}", remedy)

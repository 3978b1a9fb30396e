"""What a job loads with the guest: module by module, so that no line added brings more unseen.

How long it takes and how much memory it holds is measured: ``python -m bench guest_cost``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

# what `import dfx_agent.shim` loads of ours; torch's side and adapters come with what they hook
OURS = [
    "dfx_agent",
    "dfx_agent.shim",
    "dfx_agent.shim.adapters",
    "dfx_agent.shim.clients",
    "dfx_agent.shim.compiling",
    "dfx_agent.shim.deferred",
    "dfx_agent.shim.failures",
    "dfx_agent.shim.identity",
    "dfx_agent.shim.imports",
    "dfx_agent.shim.ledger",
    "dfx_agent.shim.lifecycle",
    "dfx_agent.shim.memory_points",
    "dfx_agent.shim.meter",
    "dfx_agent.shim.patches",
    "dfx_agent.shim.permanent_state",
    "dfx_agent.shim.recorder",
    "dfx_agent.shim.sample_statistics",
    "dfx_agent.shim.span_writer",
    "dfx_agent.shim.spans",
    "dfx_agent.wire",
    "dfx_agent.wire.failure",
    "dfx_agent.wire.layout",
    "dfx_agent.wire.records",
    "dfx_agent.wire.ring",
    "dfx_agent.wire.segment",
    "dfx_agent.wire.variables",
]
# what we import of the standard library, at most; what these import in turn is Python's affair
STANDARD = [
    "__future__",
    "bisect",
    "collections.abc",
    "contextlib",
    "contextvars",
    "dataclasses",
    "errno",
    "functools",
    "itertools",
    "math",
    "mmap",
    "operator",
    "os",
    "re",
    "struct",
    "sys",
    "threading",
    "time",
    "types",
    "typing",
    "weakref",
    "zlib",
]
# loaded with the interpreter itself
BUILT_IN = ["sys", "time"]
PROBE = """
import sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    __import__(name)
before = {*sys.modules}
import dfx_agent.shim
{then}
print(*sorted({*sys.modules} - before))
"""


def loaded(*already: str, then: str = "") -> list[str]:
    """What a bare interpreter loads when it imports the guest after ``already``."""
    probe = [sys.executable, "-I", "-S", "-c", PROBE.replace("{then}", then), str(ROOT), *already]
    done = subprocess.run(probe, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_modules_that_importing_the_guest_loads() -> None:
    found = loaded(*STANDARD)
    assert found == OURS  # and nothing of the standard library beyond what is named


def test_arming_loads_the_entry_and_no_more() -> None:
    then = "from dfx_agent.shim.bootstrap import arm; arm()"
    assert {*loaded(*STANDARD, then=then)} - {*OURS} == {"dfx_agent.shim.bootstrap"}


def test_each_module_that_is_named_is_needed() -> None:
    assert {*STANDARD} - {*loaded()} - {*BUILT_IN} == set()

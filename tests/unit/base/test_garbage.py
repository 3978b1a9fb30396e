"""Cycles are still found, but not looked for all the time."""

from __future__ import annotations

import subprocess
import sys

_JOB = """
import gc, weakref
from dfx_agent.base.garbage import collect_rarely
collect_rarely()
assert gc.isenabled() and gc.get_freeze_count()
class Cycle: pass
cycle = Cycle()
cycle.itself, gone = cycle, weakref.ref(cycle)
del cycle
seen = []
gc.callbacks.append(lambda phase, info: seen.append(phase))
kept = [[n] for n in range(40_000)]
assert not seen and gone() is not None, seen
kept += [[n] for n in range(40_000)]
assert seen and gone() is None, seen
"""


def test_a_cycle_is_found_though_rarely_looked_for():
    done = subprocess.run([sys.executable, "-c", _JOB], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

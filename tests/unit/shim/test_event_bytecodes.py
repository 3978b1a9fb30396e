"""What the guest executes for each event does not grow unseen."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")

# Of Python 3.11. Who raises one of them gives the reason in the same commit.
BYTECODES = {
    "span": 293,
    "tokens": 102,
    "scalar": 82,
    "ten scalars": 722,
    "step": 297,
    "ledger of three columns": 3772,
    "repeated forward": 216,
    "backward": 639,
    "optimizer step": 725,
    "gradient norm": 226,
    "collective": 428,
}
TOLERANCE = 0.05
PYTHON = (3, 11)


@pytest.mark.skipif(sys.version_info[:2] != PYTHON, reason="the figures are of Python 3.11")
def test_an_event_takes_no_more_bytecodes_than_are_written_down():
    command = [sys.executable, "-m", "bench.event_bytecodes"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    counted = json.loads(done.stdout)
    assert counted.keys() == BYTECODES.keys()
    grown = {
        event: (number, BYTECODES[event])
        for event, number in counted.items()
        if abs(number - BYTECODES[event]) > TOLERANCE * BYTECODES[event]
    }
    assert grown == {}, "more: make it less, or write it down with the reason; less: write it down"

"""A verb that was stopped and goes on is not told to end by that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = """
import signal, sys
from dfx_agent.commands.serve.shutdown import wait_for_signal
signals = {signal.SIGINT, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
print("waits", flush=True)
while not wait_for_signal(signals, 0.2):
    print("looks", flush=True)
print("ends", flush=True)
"""


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_stop_past_its_time_is_no_signal_to_end():
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "waits\n"
            for _ in range(3):
                os.kill(child.pid, signal.SIGSTOP)
                until = time.monotonic() + 0.5  # longer than it waits at a time
                while not is_stopped(child.pid) or time.monotonic() < until:
                    time.sleep(0.01)
                os.kill(child.pid, signal.SIGCONT)
                assert child.stdout.readline() == "looks\n"
            child.send_signal(signal.SIGTERM)
            assert child.stdout.read().endswith("ends\n")
            assert child.wait() == 0
        finally:
            child.kill()

"""A job that counts its signals: says "ready", ends 0.5 s after the first with exit code 7."""

import signal
import sys
import time

counts = {}


def count(number, _frame):
    name = signal.Signals(number).name
    counts[name] = counts.get(name, 0) + 1


for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
    signal.signal(each, count)
print("ready", sys.stdin.isatty(), sys.stdout.isatty(), flush=True)
deadline = time.monotonic() + 20
while not counts and time.monotonic() < deadline:
    time.sleep(0.02)
end = time.monotonic() + 0.5
while time.monotonic() < end:
    time.sleep(0.02)
print("counted", counts, flush=True)
sys.exit(7)

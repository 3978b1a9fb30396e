"""What one interpreter does with the wire and the guest; standard library only.

    python3.X wire_selftest.py write FOLDER    write one segment, checked by itself
    python3.X wire_selftest.py read FOLDER     read every segment of the folder and check it

Prints one JSON line. Run with the repository on PYTHONPATH.
"""

import glob
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time

import dfx_agent.shim as dfx
from dfx_agent.shim import recorder
from dfx_agent.wire import Identity, SegmentReader, SegmentWriter

NUM_RECORDS = 500
LOOP = """
import sys
from dfx_agent.wire import Identity, SegmentWriter
segment = SegmentWriter(sys.argv[1], Identity(), num_records=4096)
name = segment.add_name("rollout")
segment.inflight.enter(7, 42, 1, 0, 9, 1, name)
print("go", flush=True)
n = 0
while True:
    n += 1
    segment.emit(n, n + 1, n * 2.0, -n, n, n, 1, 2, name)
"""


def emit_all(segment, thread, count):
    for n in range(1, count + 1):
        segment.emit(n, n + 1, n * 2.0, -n, n, n, thread, 2, 1)


def is_intact(record):
    n = record[1]
    return record[2:7] == (n + 1, n * 2.0, -n, n, n) and record[8:10] == (2, 1)


def write(folder):
    """The segment that all other interpreters read."""
    identity = Identity(run="selftest", role=platform.python_version(), rank=3, host="h-\u00e9")
    segment = SegmentWriter(folder, identity, num_records=1024)
    assert segment.add_name("rollout-\u4e2d") == 1
    emit_all(segment, 1, NUM_RECORDS)
    segment.inflight.enter(5, 6, 7, 0, 9, 1, 1)
    segment.finish()
    segment.close()


def check_segment(path):
    reader = SegmentReader(path)
    identity = reader.identity()
    assert (identity.run, identity.rank, identity.host) == ("selftest", 3, "h-\u00e9"), identity
    records = reader.poll()
    assert [r[0] for r in records] == list(range(1, NUM_RECORDS + 1))
    assert all(map(is_intact, records))
    assert reader.name(1) == "rollout-\u4e2d"
    assert [r[1:6] for r in reader.inflight()] == [(5, 0, 0.0, 6, 7)]
    assert reader.live_words()[0] == 2
    assert reader.clock_pairs()
    reader.close()
    return identity.role


def check_threads(folder):
    segment = SegmentWriter(folder, Identity(), num_records=1 << 12)
    reader = SegmentReader(segment.path)
    threads = [threading.Thread(target=emit_all, args=(segment, i, 20000)) for i in range(4)]
    seen = []
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        seen += reader.poll()
        time.sleep(0.001)
    while True:
        batch = reader.poll()
        if not batch:
            break
        seen += batch
    seen += reader.drain()
    numbers = [r[0] for r in seen]
    assert len(set(numbers)) == len(numbers)
    assert all(map(is_intact, seen))
    assert len(seen) + reader.ring.num_lost == 80000, (len(seen), reader.ring.num_lost)
    reader.close()


def check_fork(folder):
    assert dfx.init(run="selftest", role="trainer", directory=folder)
    dfx.set_step(4)
    with dfx.stage("over fork"):
        pid = os.fork()
        if not pid:
            os.environ["DFX_DIR"] = folder
            with dfx.stage("child"):
                pass
            assert recorder.current.pid == os.getpid()
            os._exit(0 if len(SegmentReader(recorder.current.path).poll()) == 1 else 1)
        assert os.waitpid(pid, 0)[1] == 0
    with dfx.wait("barrier"):
        dfx.scalar("kl", 0.5)
    path = recorder.current.path
    dfx.shutdown()
    reader = SegmentReader(path)
    names = [reader.name(r[9]) for r in reader.poll()]
    assert names == [None, "over fork", "kl", "barrier"], names
    assert reader.live_words() == (2, reader.live_words()[1], 0, 0, 0)


def check_kill(folder):
    process = subprocess.Popen([sys.executable, "-c", LOOP, folder], stdout=subprocess.PIPE)
    process.stdout.readline()
    time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    (path,) = glob.glob(os.path.join(folder, "*.seg"))
    reader = SegmentReader(path)
    records = reader.poll()
    assert records
    assert all(r[2] == r[1] + 1 and r[4] == -r[1] for r in records)
    assert reader.ring.num_pending <= 1
    assert [(r[1], r[4], reader.name(r[9])) for r in reader.inflight()] == [(7, 42, "rollout")]


def main():
    verb, folder = sys.argv[1:]
    version = platform.python_version()
    if verb == "write":
        with tempfile.TemporaryDirectory(dir=os.path.dirname(folder)) as scratch:
            for check in (check_threads, check_fork, check_kill):
                below = os.path.join(scratch, check.__name__)
                check(below)
        write(folder)
        print(json.dumps({"version": version}))
    else:
        roles = sorted(map(check_segment, glob.glob(os.path.join(folder, "*.seg"))))
        print(json.dumps({"version": version, "read": roles}))


if __name__ == "__main__":
    main()

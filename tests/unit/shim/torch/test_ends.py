"""An observed interpreter ends in any way without a word of the guest on stderr."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]

pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")

WAYS = (
    "return",
    "sys.exit",
    "exception",
    "KeyboardInterrupt",
    "os._exit",
    "sys.exit in a thread",
    "exception in a thread",
    "groups destroyed",
    "a daemon thread in collectives",
    "a daemon thread in stages",
    "a wrapper around ours",
    "a forked child",
    "a forked child that records",
    "a child of multiprocessing",
    "shutdown before",
)

# Imports torch once, and starts no thread. Each way is a fork that arms the guest, trains with
# two process groups alive, and ends as the way says; its stderr is a file of its own.
JOB = """
import json, os, signal, sys, threading, builtins, multiprocessing
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
torch.optim.SGD([torch.ones(1)])  # imports much, once for all forks
ways, folder = json.loads(sys.argv[1]), sys.argv[2]

def work():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    # without threads of its own: gloo's may stop the end of a forked process, with us or without
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    group = dist.new_group([0])
    for _ in range(2):
        model(torch.randn(2, 4)).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        dist.all_reduce(torch.ones(2))
        dist.all_reduce(torch.ones(2), group=group)
    builtins.kept = [group, model, optimizer]  # freed when the interpreter is nearly gone
    return group

def loop(call):
    def run():
        while True:
            call()
    threading.Thread(target=run, daemon=True).start()

def in_a_thread(target):
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()

def fail():
    raise RuntimeError("mine")

def staged(dfx):
    with dfx.stage("rollout"):
        pass

def wrapped():
    inner = dist.ProcessGroup.allreduce
    dist.ProcessGroup.allreduce = lambda *args, **kwargs: inner(*args, **kwargs)
    class AtTheEnd:
        def __del__(self, group=builtins.kept[0], dist=dist, ones=torch.ones(2)):
            group.allreduce(ones).wait()
    builtins.at_the_end = AtTheEnd()

def end(way):
    import dfx_agent.shim as dfx
    if way == "sys.exit": sys.exit(3)
    if way == "exception": fail()
    if way == "KeyboardInterrupt": os.kill(os.getpid(), signal.SIGINT)
    if way == "os._exit": os._exit(3)
    if way == "sys.exit in a thread": in_a_thread(sys.exit)
    if way == "exception in a thread": in_a_thread(fail)
    if way == "groups destroyed": dist.destroy_process_group()
    if way == "a daemon thread in collectives": loop(lambda: dist.all_reduce(torch.ones(2)))
    if way == "a daemon thread in stages": loop(lambda: staged(dfx))
    if way == "a wrapper around ours": wrapped()
    if way == "a forked child" and os.fork(): os.wait()
    if way == "a forked child that records":
        if os.fork(): os.wait()
        else: staged(dfx)
    if way == "a child of multiprocessing":
        child = multiprocessing.get_context("fork").Process(target=staged, args=(dfx,))
        child.start()
        child.join()
    if way == "shutdown before": dfx.shutdown()

for number, way in enumerate(ways):
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(f"{folder}/{number}", os.O_WRONLY | os.O_CREAT), 2)
        from dfx_agent.shim.bootstrap import arm
        arm()
        work()
        end(way)
        break
    os.waitpid(pid, 0)
"""


@pytest.fixture(scope="module")
def stderr_by_way(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder, segments = tmp_path_factory.mktemp("stderr"), tmp_path_factory.mktemp("segments")
    segments.chmod(0o700)
    env = {name: value for name, value in os.environ.items() if not name.startswith("DFX_")}
    env |= {"PYTHONPATH": str(ROOT), "DFX_AGENT": "1", "DFX_DIR": str(segments)}
    command = [sys.executable, "-c", JOB, json.dumps(WAYS), str(folder)]
    subprocess.run(command, env={**env, "OMP_NUM_THREADS": "1"}, check=True)
    observed = {path.name.split("-")[0] for path in segments.glob("*.seg")}
    assert len(observed) >= len(WAYS)
    return {way: (folder / str(number)).read_text() for number, way in enumerate(WAYS)}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_nothing_of_the_guest_is_printed_at_the_end(
    stderr_by_way: dict[str, str], way: str
) -> None:
    printed = stderr_by_way[way]
    assert "Exception ignored" not in printed
    assert "dfx_agent" not in printed.replace(str(ROOT / "dfx_agent"), "dfx_agent")
    assert ("mine" in printed) == ("exception" in way)

"""The guest that came by attach: in, out again and out by itself, seen from inside the process."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from attached_host import TRAINING, AttachAnswer, hooked, segment_state, until

import dfx_agent
from dfx_agent.attach.bring import _packed_guest
from dfx_agent.wire import SegmentReader
from dfx_agent.wire.layout import STATE_CLOSED, STATE_DETACHED, STATE_LIVE


def test_hooks_come_into_a_running_loop_and_everything_goes_back(trainer, agent) -> None:
    answer = trainer.attach(run="plain")
    assert answer.state == "attached"
    hooked(trainer)
    during, before = trainer.do("state()"), trainer.do("before")
    assert during["attributes"] != before["attributes"]
    assert during["hooks"] == [1, 1, 1, 2]
    assert "dfx-watch" in during["threads"]

    trainer.ask_to_leave(answer)
    trainer.train_until(lambda: trainer.has_left(answer))
    assert segment_state(answer) == STATE_DETACHED
    until(lambda: "dfx-watch" not in trainer.do("state()")["threads"])
    assert trainer.do("state()") == before


def test_a_guest_that_has_left_holds_nothing_of_the_job(trainer, agent) -> None:
    answer = trainer.attach()
    hooked(trainer)
    trainer.ask_to_leave(answer)
    trainer.train_until(lambda: trainer.has_left(answer))
    trainer.do("""
import weakref
refs = [weakref.ref(owned) for owned in (model, optimizer, optimizer.param_groups[0]["params"][0])]
del model, optimizer
""")
    until(lambda: trainer.do("gc.collect(); [ref() is None for ref in refs]") == [True] * 3)
    assert trainer.do("'.seg' in open('/proc/self/maps').read()") is False


def test_the_next_attach_uses_the_same_modules_again(host, agent) -> None:
    """Else every visit leaves cycles until the job's garbage collector runs, which jobs disable."""
    host.do("import os")
    stored = "os._dfx_residue['guest']"
    seen = []
    for _ in range(3):
        answer = host.attach()
        seen.append(host.do(f"[id({stored}), id({stored}.modules['dfx_agent.shim.attached'])]"))
        host.ask_to_leave(answer)
        until(lambda: host.has_left(answer))  # noqa: B023 (called at once)
    assert seen == seen[:1] * 3
    order = host.order(300.0, None, {})
    order._parcel["is_compiled"] = True
    order._parcel["guest"] = _packed_guest(is_compiled=True)
    host.do(f"exec({order.source!r}, {{}})")
    answer = order.answer(30.0)
    assert answer is not None
    assert answer.state == "attached"
    assert host.do(f"id({stored})") != seen[0][0], "another guest than the one that left"


def test_hooks_that_only_the_trainer_may_take_out_wait_for_its_backward(trainer, agent) -> None:
    answer = trainer.attach()
    hooked(trainer)
    trainer.ask_to_leave(answer)
    until(lambda: segment_state(answer) == STATE_DETACHED)
    until(lambda: not Path(answer.segment).with_suffix(".detach").exists())
    assert not trainer.has_left(answer)
    waiting, before = trainer.do("state()"), trainer.do("before")
    assert waiting["hooks"] == [1, 1, 1, 2]
    stored = {
        name for name, value in waiting["attributes"].items() if value != before["attributes"][name]
    }
    assert stored == {"backward"}

    trainer.do("optimizer.step(); model(torch.randn(2, 4)); None")  # they do nothing
    trainer.do("backward()")
    assert trainer.has_left(answer)
    assert trainer.do("state()") == before


def test_an_agent_that_comes_back_before_the_last_hook_is_out_finds_it_again(
    trainer, agent
) -> None:
    first = trainer.attach()
    hooked(trainer)
    trainer.ask_to_leave(first)
    until(lambda: segment_state(first) == STATE_DETACHED)
    until(lambda: not Path(first.segment).with_suffix(".detach").exists())

    second = trainer.attach()
    assert second.state == "attached"
    assert second.segment != first.segment
    assert trainer.has_left(first)
    hooked(trainer)
    trainer.do("step(); step()")
    assert trainer.do("state()")["hooks"] == [1, 1, 1, 2]
    segment = SegmentReader(second.segment)
    names = {segment.name(record[9]) for record in segment.poll() if record[8] == 1}
    segment.close()
    assert {"forward", "backward", "optimizer"} <= names

    trainer.ask_to_leave(second)
    trainer.train_until(lambda: trainer.has_left(second))
    assert trainer.do("state() == before") is True


def test_a_guest_without_an_agent_leaves_after_the_grace_period(trainer, agent) -> None:
    answer = trainer.attach(grace_seconds=2.5)
    hooked(trainer)
    fcntl.flock(agent, fcntl.LOCK_UN)
    time.sleep(1.2)
    assert segment_state(answer) == STATE_LIVE  # another agent may come
    fcntl.flock(agent, fcntl.LOCK_EX)
    time.sleep(3.0)
    assert segment_state(answer) == STATE_LIVE  # and has come: the count begins anew
    stem = Path(answer.segment)
    for suffix in (".stacks", ".flight"):
        stem.with_suffix(suffix).touch()
    fcntl.flock(agent, fcntl.LOCK_UN)
    trainer.train_until(lambda: trainer.has_left(answer))
    assert trainer.do("state()") == trainer.do("before")
    assert list(stem.parent.glob(f"{stem.stem}.*")) == []


def test_iterating_for_the_agent_never_blocks_the_lock(host, dfx_dir) -> None:
    host.attach(grace_seconds=300.0)
    fd = os.open(dfx_dir / "agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
    for _ in range(25):  # the guest looks once a second
        until(lambda: try_lock(fd), seconds=1.0)
        fcntl.flock(fd, fcntl.LOCK_UN)
        time.sleep(0.1)
    os.close(fd)


def try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def test_a_guest_of_the_job_stays_whatever_an_agent_does(host, dfx_dir) -> None:
    host.do("import sys; import dfx_agent.shim as dfx")
    assert host.do(f"dfx.init(directory={str(dfx_dir)!r}, run='own')") is True
    answer = host.attach(grace_seconds=0.1)
    assert answer.state == "observed"
    host.ask_to_leave(answer)
    time.sleep(2.5)
    assert segment_state(answer) == STATE_LIVE
    assert host.do("'dfx_agent.shim' in sys.modules") is True


def test_a_budget_stays_until_an_agent_brings_another(host, agent) -> None:
    host.do("import os; os.environ['DFX_MAX_OVERHEAD'] = '3%'")
    overhead = "os._dfx_residue['guest'].modules['dfx_agent.shim.torch.overhead']"
    ask = f"import os; {overhead}.allowed_ratio"

    def noted(answer: AttachAnswer) -> Any:
        return json.loads(Path(answer.segment).with_suffix(".attached").read_text())

    first = host.attach()
    assert host.do(ask) is None
    assert noted(first)["max_overhead_ratio"] == 0.03  # the job's own
    second = host.attach(max_overhead_ratio=0.005)
    assert second.segment == first.segment
    third = host.attach()
    assert host.do(ask) == noted(third)["max_overhead_ratio"] == 0.005
    host.ask_to_leave(third)
    until(lambda: host.has_left(third))
    host.attach()
    assert host.do(ask) is None  # of the last visit


def test_two_versions_never_mix(host) -> None:
    host.do("import sys, types; sys.modules['dfx_agent'] = types.ModuleType('dfx_agent')")
    host.do("sys.modules['dfx_agent'].__version__ = '0.0.1'")
    answer = host.attach()
    assert answer.state == "refused"
    assert "dfx-agent 0.0.1 is loaded in this process" in answer.message
    assert dfx_agent.__version__ in answer.message
    assert host.do("[name for name in sys.modules if 'dfx' in name]") == ["dfx_agent"]


def test_two_agents_at_the_same_moment_make_one_guest(host, dfx_dir) -> None:
    orders = [host.order(300.0, None, {}) for _ in range(3)]
    texts = [order.source for order in orders]
    host.do(
        f"import threading; threads = [threading.Thread(target=exec, args=(text, {{}})) for text "
        f"in {texts!r}]; [thread.start() for thread in threads]; None"
    )
    answers = [order.answer(30.0) for order in orders]
    assert [answer.state for answer in answers if answer] == ["attached"] * 3
    assert len({answer.segment for answer in answers if answer}) == 1
    assert len(list(dfx_dir.glob("*.seg"))) == 1


def test_an_agent_of_another_folder_learns_which_agent_is_attached(host, agent, tmp_path) -> None:
    host.attach()
    answer = host.attach(directory=tmp_path)
    assert answer.state == "busy"
    assert (
        f"dfx-agent pid {os.getpid()} is attached to pid {host.popen.pid} since" in answer.message
    )
    assert list(tmp_path.glob("*.seg")) == []


def test_a_failure_leaves_nothing_behind(host, tmp_path) -> None:
    host.do("import sys; paths = list(sys.meta_path)")
    tmp_path.chmod(0o777)  # no folder for segments
    answer = host.attach(directory=tmp_path)
    assert answer.state == "failed"
    assert "not a private folder" in answer.message
    assert host.do("[name for name in sys.modules if 'dfx' in name]") == []
    assert host.do("sys.meta_path == paths") is True


def test_the_table_of_modules_never_changes_under_a_loop_of_the_job(trainer, agent) -> None:
    """Else: RuntimeError, dictionary changed size during iteration, in the job's own loop."""
    trainer.do("""
num_loops, is_over = 0, False
def iterate():
    global num_loops
    while not is_over:
        for name in sys.modules:
            pass
        num_loops += 1
switch = sys.getswitchinterval()
sys.setswitchinterval(1e-4)
iterating = threading.Thread(target=iterate, name="iterating")
names = list(sys.modules)
iterating.start()
""")
    for _ in range(3):
        answer = trainer.attach()
        assert answer.state == "attached"
        hooked(trainer)
        trainer.ask_to_leave(answer)
        trainer.train_until(lambda: trainer.has_left(answer))  # noqa: B023 (called at once)
    assert trainer.do("iterating.is_alive() and num_loops") > 10
    trainer.do("is_over = True; iterating.join(); sys.setswitchinterval(switch)")
    assert trainer.do("list(sys.modules) == names") is True


def test_a_job_that_imports_dfx_while_we_are_there_has_the_same_guest(host, agent) -> None:
    host.do("import os, sys")
    answer = host.attach()
    host.do("import dfx_agent.shim as dfx; from dfx_agent.shim import recorder, spans")
    assert host.do("recorder.current.path") == answer.segment
    assert host.do("dfx is os._dfx_residue['guest'].modules['dfx_agent.shim']") is True
    host.ask_to_leave(answer)
    until(lambda: host.has_left(answer))
    assert host.do("[name for name in sys.modules if 'dfx' in name]") == []


def test_a_worker_of_a_data_loader_is_passed_over(trainer, dfx_dir) -> None:
    trainer.do("import torch.utils.data._utils.worker as w; w._worker_info = object()")
    answer = trainer.attach()
    assert answer.state == "skipped"
    assert trainer.do("state()") == trainer.do("before")
    assert list(dfx_dir.glob("*.seg")) == []


def test_a_forked_child_has_no_guest(trainer, agent, dfx_dir) -> None:
    trainer.attach()
    hooked(trainer)
    child = trainer.do("""
import os, json
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    backward()
    now = state()
    os.write(write, json.dumps([now["attributes"] == before["attributes"], now["hooks"]]).encode())
    os._exit(0)
os.waitpid(pid, 0)
json.loads(os.read(read, 4096))
""")
    assert child == [True, [0, 0, 0, 0]]
    assert len(list(dfx_dir.glob("*.seg"))) == 1
    assert trainer.do("state()")["hooks"] == [1, 1, 1, 2]


def test_torch_that_is_imported_later_is_hooked(host, agent) -> None:
    pytest.importorskip("torch")
    answer = host.attach()
    host.do(TRAINING)
    hooked(host)
    host.ask_to_leave(answer)
    host.train_until(lambda: host.has_left(answer))
    assert host.do("state()")["hooks"] == [0, 0, 0, 0]


def test_a_guest_that_waits_for_torch_leaves_without_a_trace(host, agent) -> None:
    host.do("import sys; paths = list(sys.meta_path)")
    answer = host.attach()
    host.ask_to_leave(answer)
    until(lambda: host.has_left(answer))
    assert host.do("sys.meta_path == paths") is True
    assert host.do("[name for name in sys.modules if 'dfx' in name]") == []


def test_the_process_knows_its_rank_better_than_the_agent(host, agent) -> None:
    host.do("import os; os.environ.update(RANK='3', WORLD_SIZE='4', DFX_ROLE='critic')")
    answer = host.attach(run="given", rank=0, role="trainer")
    segment = SegmentReader(answer.segment)
    who = segment.identity()
    segment.close()
    assert who is not None
    assert (who.run, who.rank, who.world_size, who.role) == ("given", 3, 4, "critic")


def test_a_rank_that_only_its_process_group_knows_is_a_trainer(trainer, agent) -> None:
    trainer.do(
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1); None"
    )
    answer = trainer.attach(role="collector")
    segment = SegmentReader(answer.segment)
    who = segment.identity()
    segment.close()
    assert who is not None
    assert (who.rank, who.world_size, who.role) == (0, 1, "trainer")


def test_the_end_of_the_process_closes_the_segment(host, agent) -> None:
    answer = host.attach()
    assert host.popen.stdin
    host.popen.stdin.close()
    assert host.popen.wait(20) == 0
    assert segment_state(answer) == STATE_CLOSED

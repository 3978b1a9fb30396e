"""A process without a guest: what /proc tells, and nothing that it does not."""

import os
import signal
import subprocess
import sys
import time

import pytest

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.agent.render import outside_row
from dfx_agent.attach import procfs
from dfx_agent.exporters.prometheus.exporter import PrometheusExporter
from dfx_agent.facts.seat import LOG_ROLE
from dfx_agent.facts.stacks import Frame, ProcessStacks, ThreadStack
from dfx_agent.node.passive import OutsideProcess, placed
from dfx_agent.node.segments.stacks import stage_of
from dfx_agent.shim.recorder import Recorder
from dfx_agent.snapshot import TimeSplit
from dfx_agent.wire import Identity

TRAINER = Identity(run="r", role="trainer", host="n", rank=0, local_rank=0, world_size=2)
BUSY = "import sys; print(1, flush=True)\nwhile True: pass"
_SECOND = 10**9


@pytest.fixture
def child():
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as popen:
        popen.stdout.readline()
        yield popen
        popen.kill()


def outside(pid: int, identity: Identity = TRAINER) -> OutsideProcess:
    return OutsideProcess(identity, pid, procfs.start_ticks(pid))


def until_state(process: OutsideProcess, letter: str) -> None:
    """In this state, and a tick of processor time was counted: a runnable process may have none."""
    deadline, now_ns = time.monotonic() + 60, time.monotonic_ns()
    while (seen := outside_row(process).outside).state != letter or not seen.cpu_seconds:
        assert time.monotonic() < deadline, seen
        time.sleep(0.02)
        now_ns += 2 * _SECOND
        process.look(now_ns)


def test_state_processor_time_threads_and_memory(child):
    process = outside(child.pid)
    first = outside_row(process)
    assert (first.outside.cpu_seconds, first.outside.cpu_ratio, first.host_memory) == (None,) * 3
    until_state(process, "R")
    row = outside_row(process)
    assert (row.state, row.source, row.pid, row.rank) == ("live", "passive", child.pid, "0")
    assert row.outside.num_threads == {"R": 1}
    assert row.outside.cpu_seconds > 0
    assert row.host_memory.anonymous_bytes > 2**20
    assert abs(row.begin_seconds - time.time()) < 300
    os.kill(child.pid, signal.SIGSTOP)
    until_state(process, "T")
    assert outside_row(process).outside.num_threads == {"T": 1}
    until_idle = outside_row(process).outside.cpu_seconds
    process.look(time.monotonic_ns() + 10**6 * _SECOND)
    assert outside_row(process).outside.cpu_ratio == 0.0
    assert outside_row(process).outside.cpu_seconds == until_idle


def test_an_ended_process_has_only_what_it_used(child):
    process = outside(child.pid)
    until_state(process, "R")
    child.kill()
    until_state(process, "")
    row = outside_row(process)
    assert (row.state, row.host_memory, row.outside.cpu_ratio) == ("exited", None, None)
    assert row.outside.num_threads == {}
    assert row.outside.cpu_seconds > 0


def test_another_process_with_its_pid_is_not_it():
    process = OutsideProcess(TRAINER, os.getpid(), procfs.start_ticks(os.getpid()) - 1)
    process.look(time.monotonic_ns())
    assert not process.is_living


def test_the_next_process_of_a_rank_takes_its_place(child):
    first, second = outside(os.getpid()), outside(child.pid)
    assert [p.label for p in placed([second, first])] == ["0", f"0.{child.pid}"]
    again = outside(child.pid)
    first.is_living = False
    assert placed([first, again]) == (again,)
    assert again.label == "0"


def test_its_series_are_marked_and_no_time_is_made_up(child, dfx_dir):
    agent = Agent(Config(directory=str(dfx_dir)))
    log = Recorder(str(dfx_dir), Identity(run="r", role=LOG_ROLE, framework="verl", rank=0))
    log.scalar("actor/grad_norm", 0.5, 3)
    process = outside(child.pid)
    process.add_stack("backward")
    process.add_stack(None)
    agent.observe_outside("r", [process])
    agent.poll()
    (run,) = agent.snapshot().runs
    assert [(rank.role, rank.source) for rank in run.ranks] == [
        (LOG_ROLE, "passive"), ("trainer", "passive"),
    ]  # fmt: skip
    assert all(rank.totals == rank.current == TimeSplit() for rank in run.ranks)
    assert [(v.kind, v.state, v.role) for v in run.verdicts if v.role == "trainer"] == [
        ("straggler", "insufficient evidence", "trainer")
    ]
    assert not [v for v in run.verdicts if v.kind in {"hang", "crash"}]
    assert agent.timeline("r", 5) == ()
    text = PrometheusExporter(agent).render(None)[0].decode()
    names = {line.partition("{")[0] for line in text.splitlines() if 'role="trainer"' in line}
    assert names == {
        "dfx_rank_info", "dfx_rank_up", "dfx_passive_cpu_seconds_total", "dfx_passive_threads",
        "dfx_passive_stack_samples_total", "dfx_passive_stack_failures_total",
        "dfx_host_memory_anonymous_bytes", "dfx_host_memory_resident_bytes",
        "dfx_host_memory_virtual_bytes", "dfx_verdict_state",
    }  # fmt: skip
    of_log = [line for line in text.splitlines() if 'role="log"' in line]
    assert any(line.startswith("dfx_actor_grad_norm{") for line in of_log)
    assert not [line for line in of_log if "_seconds" in line or "memory" in line]
    assert 'stage="backward"} 1.0' in text
    log.finish()
    agent.stop()


def test_a_run_without_a_log_stays_while_it_is_watched(child, dfx_dir):
    agent = Agent(Config(directory=str(dfx_dir)))
    agent.observe_outside("r", [outside(child.pid)])
    child.kill()
    child.wait()
    agent.poll()
    agent.poll()
    assert agent.snapshot().agent.num_segments == 0
    (run,) = agent.snapshot().runs
    assert [rank.state for rank in run.ranks] == ["exited"]
    assert run.begin_seconds > 0
    agent.stop()


def as_stacks(frames) -> ProcessStacks:
    """Of a Python frame and all around it, as py-spy would tell them."""
    found = []
    while frames is not None:
        code = frames.f_code
        found.append(Frame(code.co_filename, frames.f_lineno, code.co_name))
        frames = frames.f_back
    return main_thread(found[::-1])


def main_thread(frames: list[Frame]) -> ProcessStacks:
    main = ThreadStack("MainThread", 1, is_main=True, frames=tuple(frames))
    return ProcessStacks("py-spy", None, (main,))


def seen_here(seen: list[str]) -> None:
    seen.append(stage_of(as_stacks(sys._getframe(1))))


def test_stages_of_a_real_training_step():
    torch = pytest.importorskip("torch")
    seen: list[str] = []

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x):
            seen_here(seen)
            return self.layer(x)

    model = Model()
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.register_step_pre_hook(lambda *_: seen_here(seen))
    model.layer.weight.register_hook(lambda _: seen_here(seen))
    seen_here(seen)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert seen == ["", "forward", "backward", "optimizer"]


def test_stages_of_a_real_collective_and_a_real_checkpoint(tmp_path):
    torch = pytest.importorskip("torch")
    distributed = pytest.importorskip("torch.distributed")
    seen: list[str] = []

    def note(frame, event, function):
        if event == "call" and frame.f_code.co_name in {"all_reduce", "_save"}:
            seen.append(stage_of(as_stacks(frame)))

    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    sys.setprofile(note)
    try:
        distributed.all_reduce(torch.ones(1))
        torch.save(torch.ones(1), tmp_path / "model.pt")
    finally:
        sys.setprofile(None)
        distributed.destroy_process_group()
    assert seen == ["communication", "checkpoint"]


GENERATION = "/site/transformers/generation/utils.py"
MODULE = "/site/torch/nn/modules/module.py"


@pytest.mark.parametrize(
    ("frames", "stage"),
    [
        ([Frame(GENERATION, 1, "generate"), Frame(MODULE, 2, "_call_impl")], "rollout"),
        ([Frame("/site/vllm/entrypoints/llm.py", 1, "generate")], "rollout"),
        ([Frame("/home/me/train.py", 1, "generate")], ""),
        ([Frame("/site/torch/optim/lr_scheduler.py", 1, "step")], ""),
        ([], ""),
    ],
)  # fmt: skip
def test_stages_of_well_known_frames_only(frames, stage):
    assert stage_of(main_thread(frames)) == stage
    assert stage_of(ProcessStacks("py-spy", None, ())) == ""

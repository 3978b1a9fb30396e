import itertools
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from dfx_agent.commands.demo.fault_plan import FaultPlan
from dfx_agent.commands.demo.faults import STAGES, parse


def plan(*specs, rank=0, world_size=4, step=10):
    result = FaultPlan([parse(spec) for spec in specs], rank, world_size)
    result.begin_step(step)
    return result


def test_a_sound_run_is_left_alone():
    sound = plan()
    scores = torch.tensor([0.5, 1.0])

    for stage in STAGES:
        sound.enter(stage)
    assert sound.num_prompts(8) == 8
    assert sound.learning_rate(1e-4) == 1e-4
    assert sound.entropy_penalty() == 0
    assert sound.loss_scale() == 1
    assert torch.equal(sound.misaligned(scores), scores)
    assert not sound.aborted(100, torch.Generator()).any()
    assert torch.equal(sound.shaped_rewards(scores, torch.tensor([3, 9]), 24), scores)


@pytest.mark.parametrize(
    ("kind", "effect"),
    [
        ("divergence", lambda p: p.learning_rate(1e-3) == pytest.approx(1e-1)),
        ("divergence", lambda p: p.learning_rate(1e-5) == pytest.approx(1e-2)),
        ("entropy_collapse", lambda p: p.entropy_penalty() > 0),
        ("nan", lambda p: math.isnan(p.loss_scale())),
        (
            "length_explosion",
            lambda p: (
                p.shaped_rewards(torch.tensor([1.0, 0.0]), torch.tensor([5, 24]), 24).diff().item()
                > 0
            ),
        ),
    ],
)
def test_effects_begin_with_their_step(kind, effect):
    assert not effect(plan(f"{kind}:12", step=11))
    assert effect(plan(f"{kind}:12", step=12))
    assert effect(plan(f"{kind}:12", step=13))


def test_tokens_imbalance_moves_work_to_the_later_ranks():
    shares = [plan("tokens_imbalance", rank=rank).num_prompts(8) for rank in range(4)]

    assert shares == [4, 7, 9, 12]


def test_rollout_abort_aborts_its_share():
    aborted = plan("rollout_abort:0.25").aborted(10_000, torch.Generator().manual_seed(0))

    assert aborted.float().mean().item() == pytest.approx(0.25, abs=0.02)


@pytest.fixture
def thread_clock(monkeypatch):
    """A clock of processor time that runs 1 ms on at each look, so that no load disturbs it."""
    ticks = itertools.count()
    monkeypatch.setattr(time, "thread_time", lambda: next(ticks) / 1e3)


def slowed_ratio(some_plan, stage, num_looks=1000):
    begin_seconds = time.thread_time()
    with some_plan.slowed(stage):
        for _ in range(num_looks):
            time.thread_time()
    return (time.thread_time() - begin_seconds) * 1e3 / num_looks


@pytest.mark.usefixtures("thread_clock")
def test_a_straggler_burns_its_factor_of_processor_time():
    slow, other = plan("straggler:1:3", rank=1), plan("straggler:1:3", rank=0)

    assert slowed_ratio(slow, "rollout") == pytest.approx(3, rel=0.01)
    assert slowed_ratio(other, "rollout") == pytest.approx(1, rel=0.01)
    assert slowed_ratio(slow, "actor_update") == pytest.approx(1, rel=0.01)


def resident_mib():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def test_host_leak_is_resident_and_stays():
    leaking = plan("host_leak:40", step=1)
    before = resident_mib()
    leaking.begin_step(2)
    leaking.begin_step(3)

    assert resident_mib() - before == pytest.approx(80, abs=10)


def start_plan(spec, step, stage):
    """A process that enters ``stage`` in ``step`` as rank 1 and prints what it reaches."""
    script = (
        "from dfx_agent.commands.demo.fault_plan import FaultPlan\n"
        "from dfx_agent.commands.demo.faults import parse\n"
        f"plan = FaultPlan([parse({spec!r})], rank=1, world_size=2)\n"
        f"plan.begin_step({step})\n"
        "print('before', flush=True)\n"
        f"plan.enter({stage!r})\n"
        "print('after', flush=True)\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )


@pytest.mark.parametrize(
    ("spec", "step", "stage"),
    [
        ("crash:1:5", 4, "backward"),
        ("crash:1:5", 5, "forward"),
        ("crash:0:5", 5, "backward"),
        ("hang:1:rollout:5", 4, "rollout"),
        ("hang:1:rollout:5", 5, "reward"),
        ("hang:0:rollout:5", 5, "rollout"),
    ],
)
def test_crash_and_hang_spare_other_steps_stages_and_ranks(spec, step, stage):
    untouched = FaultPlan([parse(spec)], rank=1, world_size=2)
    untouched.begin_step(step)
    untouched.enter(stage)


def test_crash_kills_the_process_itself():
    with start_plan("crash:1:5", 5, "backward") as process:
        output, _ = process.communicate(timeout=60)

    assert process.returncode == -signal.SIGKILL
    assert output == "before\n"


def test_hang_never_returns():
    with start_plan("hang:1:rollout:5", 6, "rollout") as process:
        assert process.stdout.readline() == "before\n"
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=2)
        finally:
            process.kill()
        assert process.stdout.read() == ""


def test_misalign_gives_rank_0_the_rewards_of_the_next_sample():
    rewards = torch.tensor([1.0, 2.0, 3.0])
    assert plan("misalign:10").misaligned(rewards).tolist() == [3.0, 1.0, 2.0]
    assert torch.equal(plan("misalign:11").misaligned(rewards), rewards)
    assert torch.equal(plan("misalign:10", rank=1).misaligned(rewards), rewards)

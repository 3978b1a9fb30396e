"""The demo learns, and its faults do to a real run what they say."""

import math
import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from live_processes import DFX_AGENT, demo_environment, started, until

ROOT = Path(__file__).parents[2]
DEMO = ["-m", "dfx_agent.commands.demo.tiny_grpo"]
# --standalone takes a free port: several runs share this machine.
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]

SPREADS = (
    "critic/score",
    "critic/rewards",
    "critic/advantages",
    "response_length",
    "prompt_length",
)
NAMES = {f"{name}/{reduction}" for name in SPREADS for reduction in ("mean", "max", "min")} | {
    "actor/entropy",
    "actor/ppo_kl",
    "actor/pg_clipfrac",
    "actor/pg_loss",
    "actor/kl_loss",
    "actor/loss",
    "actor/grad_norm",
    "actor/lr",
    "response_length/clip_ratio",
    "response/aborted_ratio",
    "perf/total_num_tokens",
    "perf/time_per_step",
    "perf/throughput",
    "timing_s/gen",
    "timing_s/reward",
    "timing_s/old_log_prob",
    "timing_s/ref",
    "timing_s/adv",
    "timing_s/update_actor",
    "timing_s/update_weights",
    "timing_s/step",
    "training/global_step",
    "training/rollout_probs_diff_mean",
    "training/rollout_probs_diff_max",
}
ACCURACY = "val-core/digit_reversal/acc/mean@1"


def start(folder, *arguments, num_ranks=1):
    launcher = [*TORCHRUN, str(num_ranks)] if num_ranks > 1 else []
    environment = {
        **os.environ,
        "DFX_DIR": str(folder / "segments"),
        "TMPDIR": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, *launcher, *DEMO, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def parse_steps(output):
    """One dict of metrics for each console line, in order."""
    lines = [line for line in output.splitlines() if line.startswith("step:")]
    return [
        {name: float(value) for name, value in (pair.rsplit(":", 1) for pair in line.split(" - "))}
        for line in lines
    ]


def train(folder, *arguments, num_ranks=1):
    with start(folder, *arguments, num_ranks=num_ranks) as process:
        output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert "Warning" not in errors
    return parse_steps(output)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("healthy")
    options = "--steps 32 --seed 0 --learning-rate 3e-4 --validate-every 16 --checkpoint-every 12"
    steps = train(folder, *options.split(), num_ranks=2)
    assert not list(folder.glob("tiny_grpo_*")), "the checkpoint folder stayed behind"
    return steps


def mean_of(steps, name):
    return statistics.mean(step[name] for step in steps)


def test_mean_reward_rises_clearly(healthy):
    first = mean_of(healthy[:5], "critic/score/mean")
    last = mean_of(healthy[-5:], "critic/score/mean")

    assert first < 0.1
    assert last > first + 0.15


def test_the_policy_becomes_surer_and_leaves_the_reference(healthy):
    assert mean_of(healthy[-5:], "actor/entropy") < mean_of(healthy[:5], "actor/entropy") - 0.3
    assert mean_of(healthy[-5:], "actor/kl_loss") > mean_of(healthy[:5], "actor/kl_loss") + 0.3


def test_every_step_logs_verls_names_with_finite_values(healthy):
    assert [step["step"] for step in healthy] == list(range(1, 33))
    for step in healthy:
        assert set(step) >= NAMES
        assert all(math.isfinite(value) for value in step.values())


def test_checkpoint_and_validation_come_when_due(healthy):
    assert [step["step"] for step in healthy if "timing_s/save_checkpoint" in step] == [12, 24]
    assert [step["step"] for step in healthy if ACCURACY in step] == [16, 32]


def test_stages_make_up_the_step(healthy):
    for step in healthy:
        stages = [
            value
            for name, value in step.items()
            if name.startswith("timing_s/") and name not in ("timing_s/step", "timing_s/testing")
        ]
        assert sum(stages) >= 0.8 * step["timing_s/step"]


def test_the_rollout_copy_acts_with_the_trained_weights(healthy):
    assert max(step["training/rollout_probs_diff_max"] for step in healthy) < 1e-4


def test_equal_seeds_train_equally(tmp_path):
    options = ["--steps", "3", "--seed", "5", "--prompts-per-rank", "2", "--validate-every", "0"]
    first, second = (train(tmp_path, *options) for _ in range(2))

    for name in ("critic/score/mean", "actor/loss", "actor/grad_norm", "actor/entropy"):
        assert [step[name] for step in first] == [step[name] for step in second]


SHORT = ["--prompts-per-rank", "4", "--learning-rate", "3e-4", "--validate-every", "0"]


def test_divergence_throws_the_policy_far_off(tmp_path):
    steps = train(tmp_path, *SHORT, "--steps", "7", "--fault", "divergence:4")

    assert [step["actor/lr"] for step in steps] == pytest.approx([3e-4] * 3 + [3e-2] * 4)
    sound = max(step["actor/kl_loss"] for step in steps[:3])
    assert max(step["actor/kl_loss"] for step in steps[3:]) > max(1.5, 4 * sound)


def test_entropy_collapses(tmp_path):
    steps = train(tmp_path, *SHORT, "--steps", "16", "--fault", "entropy_collapse:2")

    assert steps[0]["actor/entropy"] > 2
    assert steps[-1]["actor/entropy"] < 0.5


def test_length_explodes(tmp_path):
    steps = train(tmp_path, *SHORT, "--steps", "14", "--fault", "length_explosion:4")

    assert mean_of(steps[-3:], "response_length/mean") > 20
    assert mean_of(steps[-3:], "response_length/clip_ratio") > 0.7
    assert mean_of(steps[-3:], "critic/score/mean") > 1


def test_several_faults_at_once_on_two_ranks(tmp_path):
    faults = (
        "--fault tokens_imbalance --fault rollout_abort:0.5 --fault nan:3 --fault straggler:1:2"
    )
    steps = train(tmp_path, *SHORT, "--steps", "4", *faults.split(), num_ranks=2)

    assert mean_of(steps, "response/aborted_ratio") == pytest.approx(0.5, abs=0.2)
    assert [math.isfinite(step["actor/grad_norm"]) for step in steps] == [True, True, False, False]
    assert [math.isfinite(step["actor/loss"]) for step in steps] == [True, True, False, False]
    assert all(math.isfinite(step["critic/score/mean"]) for step in steps)


def test_a_crash_ends_the_job(tmp_path):
    options = [*SHORT, "--steps", "9", "--fault", "crash:1:2"]
    with start(tmp_path, *options, num_ranks=2) as process:
        output, errors = process.communicate(timeout=120)

    assert process.returncode == 1
    assert [step["step"] for step in parse_steps(output)] == [1]
    assert "SIGKILL" in errors


def test_a_hang_stops_all_ranks(tmp_path):
    options = [*SHORT, "--steps", "9", "--fault", "hang:1:weight_sync:3"]
    with start(tmp_path, *options, num_ranks=2) as process:
        reached = 0
        while reached < 2:
            line = process.stdout.readline()
            assert line, "the run ended before its fault"
            reached += line.startswith("step:")
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=5)
        finally:
            process.terminate()
        output, _ = process.communicate(timeout=60)

    assert parse_steps(output) == []


def test_ctrl_c_ends_the_demo_without_a_traceback(dfx_dir, tmp_path, free_port):
    """The terminal sends SIGINT to all processes of the demo: torchrun has a handler of its own."""
    listen = f"127.0.0.1:{free_port()}"
    command = [*DFX_AGENT, "demo", "--ranks", "1", "--no-browser", "--listen", listen]
    with started(command, tmp_path, demo_environment()) as demo:
        until(lambda: "step   2/" in demo.output, "two steps", 120)
        os.killpg(demo.pid, signal.SIGINT)
        demo.wait(60)
        assert "on your own job:" in demo.output
        assert "Traceback" not in demo.output + demo.errors

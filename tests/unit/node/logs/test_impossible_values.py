"""A value that a signal cannot have is dropped, and that is said with a count."""

import json

import pytest

from dfx_agent.node.logs.reader import read


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("key", "usual", "impossible"),
    [
        ("mean_response_len", 100.0, -1.0),
        ("completion_length", 100.0, -1.0),
        ("mean_reward", 0.5, 1e300),
        ("reward", 0.5, -1e300),
        ("my_gradient_norm", 1.0, -2.0),
        ("grad_norm", 1.0, -2.0),
        ("my_entropy", 0.5, -3.0),
    ],
)
def test_it_is_dropped_and_counted(tmp_path, key, usual, impossible):
    rows = [{"step": i, "kl": 0.1, key: impossible if i in {7, 9} else usual} for i in range(300)]
    run = read(write(tmp_path / "log", rows))
    assert [step for step, values in run.rows if len(values) == 1] == [7, 9]
    (line,) = (line for line in run.warnings if "is no possible" in line)
    assert line.startswith(f"{impossible:.6g} of step 7 is no possible ")
    assert line.endswith(": dropped (1 more such)")


def test_nan_inf_and_a_loss_of_any_size_stay(tmp_path):
    rows = [{"step": i, "reward": 0.5, "kl": 0.1, "loss": 1e300} for i in range(4)]
    rows += [{"step": 4, "reward": float("nan"), "kl": float("inf"), "loss": 1.0}]
    run = read(write(tmp_path / "log", rows))
    assert [len(values) for _, values in run.rows] == [3] * 5
    assert run.warnings == []


def test_an_entropy_that_falls_below_0_is_that_of_a_continuous_policy(tmp_path):
    rows = [{"ep_rew_mean": float(i), "entropy": 1.5 - 0.01 * i} for i in range(250)]
    run = read(write(tmp_path / "log", rows))
    assert not any("entropy" in key for _, values in run.rows for key in values)
    assert any("entropy is not read as entropy: 99 of 250" in line for line in run.warnings)

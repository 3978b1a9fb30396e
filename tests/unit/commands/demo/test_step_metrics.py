import math

import pytest
import torch
import torch.distributed as dist

from dfx_agent.commands.demo.step_metrics import StepMetrics, console_line, short_line


@pytest.fixture
def single_process_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def two_ranks(monkeypatch):
    """``all_gather`` as the first of two ranks sees it; the other one's metrics are given."""

    def run(mine, other):
        monkeypatch.setattr(dist, "get_world_size", lambda: 2)

        def all_gather(outputs, moments):
            outputs[0].copy_(moments)
            outputs[1].copy_(torch.stack(list(other._moments.values())))

        monkeypatch.setattr(dist, "all_gather", all_gather)
        return mine.reduced()

    return run


def test_reductions_of_one_rank(single_process_group):
    metrics = StepMetrics()
    metrics.spread("score", torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    metrics.mean("share", torch.tensor([True, False, False, False]))
    metrics.largest("seconds", 2.5)
    metrics.total("tokens", torch.tensor([3, 4]))

    assert metrics.reduced() == {
        "score/mean": 3.0,
        "score/max": 6.0,
        "score/min": 1.0,
        "share": 0.25,
        "seconds": 2.5,
        "tokens": 7.0,
    }


def test_a_rank_with_few_samples_does_not_weigh_as_one_with_many(two_ranks):
    mine, other = StepMetrics(), StepMetrics()
    for metrics, values in ((mine, [0.0, 0.0, 0.0]), (other, [1.0])):
        metrics.spread("score", torch.tensor(values))
        metrics.largest("seconds", len(values))

    assert two_ranks(mine, other) == {
        "score/mean": 0.25,
        "score/max": 1.0,
        "score/min": 0.0,
        "seconds": 3.0,
    }


def test_a_name_told_again_adds_to_it(single_process_group):
    metrics = StepMetrics()
    metrics.mean("loss", torch.tensor([1.0, 1.0, 1.0]))
    metrics.mean("loss", torch.tensor([5.0]))

    assert metrics.reduced() == {"loss": 2.0}


def test_nan_is_kept_and_nothing_is_nan(single_process_group):
    metrics = StepMetrics()
    metrics.spread("poisoned", torch.tensor([1.0, math.nan]))
    metrics.spread("empty", torch.tensor([]))

    assert all(math.isnan(value) for value in metrics.reduced().values())


def test_console_line_reads_as_verls():
    line = console_line(7, {"actor/ppo_kl": -0.000123456789, "actor/grad_norm": math.nan})

    assert line == "step:7 - actor/ppo_kl:-0.000123457 - actor/grad_norm:nan"


def test_the_short_line_names_the_longest_stage_of_those_that_ran():
    metrics = {"timing_s/step": 0.5, "timing_s/gen": 0.2, "timing_s/ref": 0.3}
    metrics |= {"perf/total_num_tokens": 600.0, "critic/rewards/mean": 0.25}
    timers = {"rollout": "timing_s/gen", "ref_logprob": "timing_s/ref", "reward": "timing_s/reward"}
    line = short_line(7, 240, metrics, timers)
    expected = "step   7/240  reward 0.250    1,200 tokens/s  0.50 s, longest ref_logprob 0.30 s"
    assert line == expected

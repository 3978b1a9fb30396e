"""Panels of stages: how much each one processes, and how often it fails."""

from __future__ import annotations

from typing import Any

from dashboards.common import lines, query
from dashboards.promql import by, of_run, rate
from dfx_agent.catalogue import per_rank, performance
from dfx_agent.catalogue.spec import by_name


def samples() -> Any:
    panel = lines(
        "Samples per second of each stage",
        "Samples of the latest step / time of the slowest rank in the stage. Stages with a "
        "boundary in the shape ledger. Steady is normal. A stage that becomes slower per sample "
        "has longer samples (see its tokens) or fewer resources.",
        "none",
    )
    handled = by("stage", "max", of_run(performance.STAGE_SAMPLES_RATE))
    return panel.with_target(query(handled, "{{stage}}")).min(0).fill_opacity(0)


def tokens() -> Any:
    panel = lines(
        "Tokens per second of each stage",
        "Tokens that count in the response mask / time of the slowest rank in the stage. Of stage "
        "reward: throughput of the reward model or function. Samples per second that fall while "
        "tokens per second stay are longer responses.",
        "none",
    )
    handled = by("stage", "max", of_run(performance.STAGE_TOKENS_RATE))
    return panel.with_target(query(handled, "{{stage}}")).min(0).fill_opacity(0)


def failures() -> Any:
    panel = lines(
        "Stages that an exception ended, per second",
        "All ranks. Flat at 0 is normal. Stage reward: the reward function raises, and the "
        "framework scores the sample as a failure or repeats it; read the log of that process.",
        "none",
    )
    failed = by("stage", "sum", rate(of_run(per_rank.STAGE_FAILURES)))
    return panel.with_target(query(failed, "{{stage}}")).min(0).fill_opacity(0)


def reward_seconds() -> Any:
    panel = lines(
        "Time to score a sample",
        "As the framework or the job reports it, by environment where it names one. Steady is "
        "normal. One environment that becomes slower: its verifier, sandbox or judge model.",
        "s",
    )
    found = of_run(by_name()["dfx_reward_seconds"], variant="", domain="")
    return panel.with_target(query(by("env, stat", "max", found), "{{env}} {{stat}}")).min(0)

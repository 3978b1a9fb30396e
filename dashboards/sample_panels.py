"""Panels of single samples: how scores and response lengths are distributed."""

from __future__ import annotations

from typing import Any

from dashboards.common import bucket_heatmap, dashed, lines, query
from dashboards.promql import buckets, by, increase, of_run
from dfx_agent.catalogue import data_quality, reward, stability
from dfx_agent.catalogue.spec import PER_RANK, Metric

_PERCENTILES = "~p10|p50|p90|p99"


def score_buckets() -> Any:
    return bucket_heatmap(
        "Scores of samples",
        "How many samples of the window had a score between two edges, all ranks and data sources. "
        "The bright rows move up while the policy learns. Two separate rows are normal for rewards "
        "of 0 and 1. A single bright row is a reward that does not distinguish samples: read some.",
        by("le", "sum", increase(buckets(of_run(reward.SAMPLE_SCORES)))),
    )


def scores_by_source() -> Any:
    panel = lines(
        "Score of the median sample, by data source",
        "The median of each data source or environment, estimated from its buckets. Sources that "
        "rise together are normal. One that stays at its lowest score is too hard or has a broken "
        "reward function; one at its best score has nothing left to teach.",
        "none",
    )
    observed = by("source, le", "sum", increase(buckets(of_run(reward.SAMPLE_SCORES))))
    return panel.with_target(query(f"histogram_quantile(0.5, {observed})", "{{source}}"))


def score_spread() -> Any:
    return _spread(
        "Spread of scores",
        "Percentiles of the scores of a step, and their standard deviation (dashed). Each rank "
        "computes them of its own samples; the mean over ranks is shown. A spread near 0 leaves "
        "nothing to learn from: the task is solved, too hard, or the reward is broken.",
        stability.SCORE,
    )


def length_spread() -> Any:
    return _spread(
        "Spread of response lengths",
        "Percentiles of the response lengths of a step in tokens, and their standard deviation "
        "(dashed), as mean over ranks. p99 near the limit while p50 is far below it: few long "
        "responses hold up the rollout. All percentiles at one value: responses are cut.",
        data_quality.RESPONSE_LENGTH,
    ).min(0)


def _spread(title: str, about: str, metric: Metric) -> Any:
    others = dict.fromkeys(sorted(set(metric.labels) - {*PER_RANK, "stat"}), "")
    panel = lines(title, about, "none").fill_opacity(0)
    for ref, stat in (("A", _PERCENTILES), ("B", "std")):
        mean = by("stat", "avg", of_run(metric, stat=stat, **others))
        panel.with_target(query(mean, "{{stat}}", ref))
    return panel.override_by_name("std", dashed())

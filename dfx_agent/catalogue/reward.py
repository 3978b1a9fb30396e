"""Scoring: its time, its terms, the distribution of scores, validation scores."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import accumulate

from dfx_agent.catalogue.performance import has_samples_of_another
from dfx_agent.catalogue.spec import PER_NODE, Metric, native
from dfx_agent.snapshot import Histogram, RankRow, RunRow

# what the guest counts: "scores/boundary/edge/data source" (wire/records.py)
SCORE_COUNTER = "scores/"
SCORE_EDGES = (
    -1000.0, -100.0, -10.0, -5.0, -2.0, -1.0, -0.8, -0.6, -0.4, -0.2, 0.0,
    0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 2.0, 5.0, 10.0, 100.0, 1000.0,
)  # fmt: skip
# boundaries before others, if several processes count the same samples
_FIRST_BOUNDARIES = ("reward", "rollout", "collector", "advantage")


def scores_by_source(run: RunRow) -> dict[tuple[str, ...], Histogram]:
    """Histogram by data source, from one boundary of one role: others have the same samples.

    Ranks that are not at position 0 of all axes but data have the samples of another rank.
    """
    counted = [
        (rank.role, *score)
        for rank in run.ranks
        if not has_samples_of_another(rank)
        for score in _counted_scores(rank)
    ]
    places = {(role, boundary) for role, boundary, *_ in counted}
    place = min(places, key=_place_order, default=None)
    by_source: dict[str, dict[str, float]] = {}
    for role, boundary, source, edge, number in counted:
        if (role, boundary) == place:
            counts = by_source.setdefault(source, defaultdict(float))
            counts[edge] += number
    return {(source,): _histogram(counts) for source, counts in by_source.items()}


def _counted_scores(rank: RankRow) -> Iterator[tuple[str, str, str, float]]:
    """Yield (boundary, data source, edge, number)."""
    for name, number in rank.counters_total.items():
        if name.startswith(SCORE_COUNTER) and name.count("/") >= 3:
            boundary, edge, source = name[len(SCORE_COUNTER) :].split("/", 2)
            yield boundary, source, edge, number


def _place_order(place: tuple[str, str]) -> tuple[int, str, str]:
    role, boundary = place
    is_listed = boundary in _FIRST_BOUNDARIES
    index = _FIRST_BOUNDARIES.index(boundary) if is_listed else len(_FIRST_BOUNDARIES)
    return index, boundary, role


def _histogram(counts: Mapping[str, float]) -> Histogram:
    edges = (*(f"{edge:g}" for edge in SCORE_EDGES), "+Inf")
    cumulative = tuple(accumulate(counts.get(edge, 0.0) for edge in edges))
    return Histogram(SCORE_EDGES, cumulative, counts["sum"] - counts["negative_sum"])


SAMPLE_SCORES = Metric(
    "dfx_sample_score", "histogram", "", (*PER_NODE, "source"),
    "Scores of samples, before a KL penalty where the batch has them: each sample once, at the "
    "first boundary of the shape ledger with scores. source: its data source or environment, empty "
    "if unknown. Batches that the ledger leaves out are not counted.", "shim",
    subject="run", value=scores_by_source,
)  # fmt: skip

# fmt: off
_NATIVE = (
    native(
        "dfx_reward_seconds", "seconds", ("stat", "variant", "domain", "env"),
        "Time to score one sample; env is one environment or all.",
    ),
    native(
        "dfx_reward_term", "", ("term", "stat", "variant", "env", "subset", "agent"),
        "One term of the reward, under the job's own name.",
    ),
    native(
        "dfx_token_reward", "", ("stat",),
        "Reward per token.",
    ),
    native(
        "dfx_reward_clip_ratio", "ratio", ("variant",),
        "Share of rewards that were clipped.",
    ),
    native(
        "dfx_group_reward_std", "", (),
        "Standard deviation of rewards within a prompt group.",
    ),
    native(
        "dfx_reward_category_ratio", "ratio", ("which",),
        "Share of samples that the reward function put into this category.",
    ),
    native(
        "dfx_val_score", "", ("name",),
        "Scores of a validation, under the framework's own names.",
    ),
)
# fmt: on

"""The histogram of scores: each sample of the run once, whoever has counted it."""

from dataclasses import replace

from prometheus_page import rank_row

from dfx_agent.catalogue.reward import SAMPLE_SCORES
from dfx_agent.exporters.prometheus.exporter import run_samples
from dfx_agent.snapshot import RunRow


def run_of(*ranks):
    return RunRow("r", "verl", 0, 1.0, ranks, (), ())


def counts_of(boundary, **by_edge):
    names = {"zero": "0", "half": "0.5", "one": "1", "larger": "+Inf"}
    return {f"scores/{boundary}/{names[edge]}/math": float(n) for edge, n in by_edge.items()}


def shown(run):
    found = run_samples(run, frozenset({"dfx_sample_score"}), "n1")
    rows = found.get("dfx_sample_score_bucket", [])
    assert all((row["run"], row["node"]) == ("r", "n1") for row, _ in rows)
    return {(row["source"], row["le"]): value for row, value in rows}


def test_ranks_add_up_and_buckets_are_cumulative():
    first = rank_row(rank="0", counters_total=counts_of("reward", zero=3, one=2))
    second = rank_row(rank="1", counters_total=counts_of("reward", half=1, larger=4))
    buckets = shown(run_of(first, second))
    assert buckets["math", "-0.2"] == 0
    assert [buckets["math", le] for le in ("0.0", "0.4", "0.5", "1.0", "1000.0", "+Inf")] == [
        3, 3, 4, 6, 6, 10,
    ]  # fmt: skip


def test_the_first_boundary_counts_and_replicas_do_not():
    driver = rank_row(role="driver", counters_total=counts_of("reward", one=8))
    worker = rank_row(role="actor", counters_total=counts_of("actor_update", one=8))
    assert shown(run_of(worker, driver))["math", "+Inf"] == 8
    replica = replace(worker, rank="1", place={"tensor": 1, "data": 0})
    other = replace(worker, rank="2", place={"tensor": 0, "data": 1})
    assert shown(run_of(worker, replica, other))["math", "+Inf"] == 16


def test_sums_are_signed():
    counts = {
        "scores/reward/sum/": 5.0,
        "scores/reward/negative_sum/": 7.0,
        "scores/reward/1/": 2.0,
    }
    (histogram,) = SAMPLE_SCORES.value(run_of(rank_row(counters_total=counts))).values()
    assert (histogram.sum, histogram.num) == (-2.0, 2.0)


def test_without_scores_there_is_no_series_and_counts_have_no_second_name():
    assert shown(run_of(rank_row(counters_total={"micro_batches": 1.0, "scores/odd": 1.0}))) == {}
    counted = run_of(rank_row(counters_total=counts_of("reward", one=1)))
    assert run_samples(counted, frozenset({"dfx_native_count"})) == {}

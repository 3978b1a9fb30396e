"""An answer as a reading: both generations of names, parts, ranks within an engine, garbage."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_engine import NAMES, ScriptedMetrics

from dfx_agent.node.engines import exposition
from dfx_agent.node.engines.exposition import NotMetricsError, PartKey, parse_metrics


def healthy(generation):
    metrics = ScriptedMetrics(generation)
    metrics.of("ttft").observe(0.2)
    return metrics.text().decode()


TEXTS = [healthy(generation) for generation in NAMES]


def only(text):
    (part,) = parse_metrics(text).parts.values()
    return part


@pytest.mark.parametrize("generation", NAMES)
def test_all_generations_of_names_read_the_same(generation):
    metrics = ScriptedMetrics(generation)
    metrics.of("running").set(7)
    metrics.of("waiting").set(2)
    metrics.of("kv").set(0.5)
    metrics.of("tokens").inc(100)
    metrics.of("preemptions").inc(3)
    for word in ("ttft", "itl", "queue"):
        metrics.of(word).observe(0.3)
    reading = parse_metrics(metrics.text().decode())
    assert (reading.engine, reading.unknown_names) == (generation.split()[-1], frozenset())
    (part,) = reading.parts.values()
    assert part.gauges == {
        "running_requests": 7.0, "waiting_requests": 2.0, "kv_cache_usage_ratio": 0.5,
    }  # fmt: skip
    assert part.counters == {"generation_tokens": 100.0, "preemptions": 3.0}
    assert part.model == "a-model"
    for name in ("time_to_first_token", "inter_token_latency", "queue_time"):
        reported = part.histograms[f"{name}_seconds"]
        assert (reported.bounds, reported.sum) == ((0.01, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0), 0.3)
        assert reported.counts == (0, 0, 0, 1, 1, 1, 1, 1)


def test_the_current_of_two_names_counts_and_no_value_twice():
    text = (
        'vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:gpu_cache_usage_perc{engine="0"} 0.75\n'
        'ray_vllm_generation_tokens{engine="0"} 5\nray_vllm_generation_tokens_total{engine="0"} 5\n'
    )
    part = only(text)
    assert part.gauges == {"kv_cache_usage_ratio": 0.25}
    assert part.counters == {"generation_tokens": 5.0}


def test_a_part_of_the_series_has_a_name_of_its_own():
    reported = 'vllm:request_success_total{engine="0",finished_reason="%s"} %d\n'
    part = only(reported % ("stop", 8) + reported % ("abort", 3) + reported % ("length", 1))
    assert part.counters == {"finished_requests": 12.0, "aborted_requests": 3.0}


def test_ranks_of_one_engine_report_the_same_requests():
    reported = 'sglang:num_running_reqs{dp_rank="0",tp_rank="%d"} %d\n'
    assert only(reported % (0, 4) + reported % (1, 5)).gauges == {"running_requests": 5.0}
    counted = 'vllm:corrupted_requests_total{engine="0",model_name="%s"} %d\n'
    assert only(counted % ("a", 4) + counted % ("b", 5)).counters == {"corrupted_requests": 9.0}


def test_each_data_parallel_rank_and_each_worker_is_a_part():
    text = "".join(
        f'vllm:num_requests_running{{engine="{rank}",WorkerId="{worker}"}} {rank}\n'
        for worker in ("w1", "w2") for rank in (0, 1)
    )  # fmt: skip
    parts = parse_metrics(text).parts
    assert set(parts) == {PartKey(w, r) for w in ("w1", "w2") for r in ("0", "1")}
    assert parts[PartKey("w2", "1")].gauges == {"running_requests": 1.0}


def test_values_without_a_rank_belong_to_the_only_rank_of_a_server():
    text = (
        'sglang:num_running_reqs{dp_rank="0",engine_type="prefill"} 4\n'
        "sglang:generation_tokens_total 9\n"
    )
    part = only(text)
    assert (part.gauges, part.counters) == ({"running_requests": 4.0}, {"generation_tokens": 9.0})
    assert part.pd == "prefill"
    assert len(parse_metrics(text + 'sglang:num_running_reqs{dp_rank="1"} 4\n').parts) == 3


def test_states_of_sleep_and_loads_of_weights():
    sleep = 'vllm:engine_sleep_state{engine="0",sleep_state="%s"} %d\n'
    assert only(sleep % ("awake", 0) + sleep % ("discard_all", 1)).sleep_state == "discard_all"
    load = 'sglang:weight_load_duration_seconds{tp_rank="%d",source="%s"} %s\n'
    text = load % (0, "disk", 2) + load % (1, "disk", 3) + load % (0, "tensor", 0.5)
    assert only(text).weight_load_seconds == {"disk": 3.0, "tensor": 0.5}


def test_a_summary_is_a_histogram_without_buckets():
    reported = 'sglang:eplb_balancedness_%s{forward_mode="%s"} %s\n'
    text = reported % ("sum", "decode", 1.5) + reported % ("count", "decode", 2)
    histogram = only(text).histograms["expert_balance"]
    assert (histogram.bounds, histogram.counts, histogram.sum) == ((), (2.0,), 1.5)


def test_unknown_names_are_named_and_are_no_error():
    text = 'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_pondering{engine="0"} 1\n'
    assert parse_metrics(text).unknown_names == {"num_requests_pondering"}


def test_the_start_of_the_process_is_read():
    text = 'process_start_time_seconds 1.7e9\nvllm:num_requests_running{engine="0"} 1\n'
    assert parse_metrics(text).start_seconds == 1.7e9


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>",
        "python_info 1",
        'vllm:num_requests_running{engine="0} 1',
        'vllm:num_requests_running{engine="0"} NaN',
        "vllm:num_requests_running one",
        'vllm:num_requests_running{engine="0"} 1\n' * (exposition.MAX_SERIES + 1),
    ],
)
def test_what_says_nothing_is_refused(text):
    with pytest.raises(NotMetricsError):
        parse_metrics(text)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_damaged_answer_reads_or_is_refused(data):
    """Whatever was cut, doubled or overwritten: no other exception, and only finite figures."""
    text = data.draw(st.sampled_from(TEXTS))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(text)))
        upto = at + data.draw(st.integers(0, 40))
        junk = data.draw(st.text(max_size=12))
        text = text[:at] + junk + text[upto:]
    try:
        reading = parse_metrics(text)
    except NotMetricsError:
        return
    for part in reading.parts.values():
        assert all(map(math.isfinite, [*part.gauges.values(), *part.counters.values()]))
        for histogram in part.histograms.values():
            assert list(histogram.counts) == sorted(histogram.counts)
            assert len(histogram.counts) == len(histogram.bounds) + 1
            assert list(histogram.bounds) == sorted(histogram.bounds)


@settings(deadline=None)
@given(st.text())
def test_any_text_is_read_or_refused(text):
    for head in ("", "vllm:num_requests_running", "sglang:queue_time_seconds_bucket{le="):
        try:
            parse_metrics(head + text)
        except NotMetricsError:
            continue

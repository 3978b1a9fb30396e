"""Engines at /metrics and as OpenTelemetry: histograms stay histograms, each replica by itself."""

from opentelemetry.sdk.metrics.export import Histogram as OtelHistogram
from prometheus_client.parser import text_string_to_metric_families

from dfx_agent.catalogue import engines
from dfx_agent.catalogue.spec import metrics_of
from dfx_agent.exporters.otel.metrics import _metric
from dfx_agent.exporters.prometheus.exporter import add_engines
from dfx_agent.exporters.prometheus.exposition import Encoder
from dfx_agent.exporters.prometheus.ranks import Page
from dfx_agent.job.engine_pool import pool_of
from dfx_agent.snapshot import EngineFacts, Histogram, RunRow

TTFT = Histogram((0.1, 1.0), (2.0, 5.0, 6.0), 7.5)


def families(**known):
    engine = EngineFacts(
        "1", "", "http://127.0.0.1:8001/metrics", "up", 1.0, "vllm", "a-model",
        gauges={"running_requests": 3.0}, totals={"generation_tokens": 90.0},
        histograms={"time_to_first_token_seconds": TTFT}, sleep_state="awake",
        kv_cache_peak_ratio=0.9,
        weight_load_seconds={"disk": 2.5}, busy_ratio=0.5,
        **known,
    )  # fmt: skip
    page = Page()
    run = RunRow("r", "verl", 0, 1.0, (), (), (), engines=pool_of([engine]))
    add_engines(page, run, "node-a")
    return page.families


def samples():
    text = Encoder().encode(families().values(), is_openmetrics=False).decode()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


LABELS = (("dp_rank", ""), ("node", "node-a"), ("replica", "1"), ("run", "r"))


def labelled(name, **further):
    return name, *sorted((*LABELS, *further.items()))


def test_a_scrape_has_every_figure_of_a_replica():
    found = samples()
    assert found[labelled("dfx_engine_up")] == 1.0
    assert found[labelled("dfx_engine_running_requests")] == 3.0
    assert found[labelled("dfx_engine_generation_tokens_total")] == 90.0
    assert found[labelled("dfx_engine_busy_ratio")] == 0.5
    assert found[labelled("dfx_engine_kv_cache_peak_ratio")] == 0.9
    assert found[labelled("dfx_engine_sleep_state", state="awake")] == 1.0
    assert found[labelled("dfx_engine_weight_load_seconds", source="disk")] == 2.5
    about = {
        "role": "rollout", "engine": "vllm", "address": "127.0.0.1:8001", "model": "a-model",
        "worker": "", "pd": "",
    }  # fmt: skip
    assert found[labelled("dfx_engine_info", **about)] == 1.0
    assert not any(name[0] == "dfx_engine_waiting_requests" for name in found)  # nobody told it


def test_a_histogram_stays_one():
    found, name = samples(), "dfx_engine_time_to_first_token_seconds"
    buckets = {bound: found[labelled(f"{name}_bucket", le=bound)] for bound in ("0.1", "1.0")}
    assert buckets == {"0.1": 2.0, "1.0": 5.0}
    assert found[labelled(f"{name}_bucket", le="+Inf")] == found[labelled(f"{name}_count")] == 6.0
    assert found[labelled(f"{name}_sum")] == 7.5


def test_opentelemetry_gets_counts_by_bucket():
    family = families()["dfx_engine_time_to_first_token_seconds"]
    metric = _metric(family, 1, 2)
    assert isinstance(metric.data, OtelHistogram)
    (point,) = metric.data.data_points
    assert (list(point.bucket_counts), list(point.explicit_bounds)) == ([2, 3, 1], [0.1, 1.0])
    assert (point.count, point.sum, point.attributes["replica"]) == (6, 7.5, "1")
    assert metric.name == "dfx.engine.time.to.first.token.seconds"


def test_every_metric_of_engines_says_what_it_is():
    metrics = metrics_of(engines)
    assert all(metric.source == "engine" and metric.help.endswith(".") for metric in metrics)

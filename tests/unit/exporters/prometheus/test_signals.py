"""Training health on /metrics: the samples the alerts read, with the run, and the parameters."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from prometheus_client.openmetrics.parser import text_string_to_metric_families
from training_curves import collapsed, healthy

from dfx_agent.catalogue import signals
from dfx_agent.catalogue.alerts.samples import samples_of
from dfx_agent.catalogue.spec import metrics_of
from dfx_agent.exporters.prometheus.exporter import PrometheusExporter
from dfx_agent.job.judging import PARAMETERS
from dfx_agent.judge.divergence.bank import SignalBank
from dfx_agent.snapshot import AgentRow, RunRow, SignalState, Snapshot

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def exported(state: SignalState | None) -> dict[str, list[tuple[dict[str, str], float]]]:
    agent = AgentRow("0", 1, "n", 0.0, 1, 0.0, 1, 5, 0, 0, 0, None, (), PARAMETERS)
    run = RunRow("r", "verl", 0, 1.0, (), (), (), signals=state, num_late_signals=3)

    class Source:
        def snapshot(self):
            return Snapshot(2.0, agent, (run,))

    body, _ = PrometheusExporter(Source()).render(OPENMETRICS)
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def a_collapse() -> SignalState:
    bank, rng = SignalBank(), random.Random(0)
    for step in range(40):
        bank.observe(step, {**healthy(rng), "score_max": 1.0, "score_min": 0.0, "aborted": 0.0})
    for step in range(40, 46):
        state = bank.observe(step, {**collapsed(rng), "grad_norm": 1e6, "loss": math.nan})
    return replace(state, timeout_rise=0.1)


def test_every_sample_that_conditions_read_is_exported_with_its_run():
    state = a_collapse()
    found = exported(state)
    expected = samples_of(state)
    assert len(expected) >= 14
    for name, rows in expected.items():
        reported = sorted((sorted(labels.items()), value) for labels, value in found[name])
        of_run = [({**labels, "run": "r", "node": "n"}, value) for labels, value in rows]
        assert reported == sorted((sorted(labels.items()), value) for labels, value in of_run)
    assert found["dfx_late_signal_values_total"] == [({"run": "r", "node": "n"}, 3)]


def test_every_metric_of_the_class_is_exported():
    found = exported(a_collapse())
    suffixes = {"counter": "_total", "info": "_info"}
    names = {m.name + suffixes.get(m.kind, "") for m in metrics_of(signals)}
    assert names <= set(found)


def test_a_run_without_signals_has_no_series_of_them():
    found = exported(None)
    derived = {metric.sample_name for metric in metrics_of(signals) if metric.source == "derived"}
    assert not derived & set(found)


def test_the_parameters_explain_the_figures():
    found = exported(None)
    (labels, one), = found["dfx_signal_detector_info"]  # fmt: skip
    assert (one, labels["window_steps"], labels["cusum_alarm"]) == (1, "64", "8")
    by_signal = {labels["signal"]: labels for labels, _ in found["dfx_signal_parameters_info"]}
    assert by_signal["entropy"] | {"signal": ""} == {
        "signal": "", "symptom": "entropy", "directions": "up down", "least_value": "0.001",
        "scale_floor": "0.12",
    }  # fmt: skip
    assert by_signal["reward"]["least_value"] == ""

"""A snapshot as Prometheus sees it."""

import dataclasses
import math
import subprocess

import pytest
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as parse_text

from dfx_agent.exporters.prometheus import PrometheusExporter
from dfx_agent.metrics.spec import by_name
from dfx_agent.snapshot import (
    AgentRow,
    Moments,
    OpenSpan,
    RankRow,
    RunRow,
    ScalarRow,
    SegmentProblem,
    Snapshot,
    StageStamp,
    TimeSplit,
)

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
SPLIT = TimeSplit(
    10.0, 6.0, 1.0, {"rollout": 4.0, "reward": 2.0}, {"barrier": {"rollout": 2.0, "": 1.0}}
)


def rank_row(**changes) -> RankRow:
    row = RankRow(
        role="trainer", rank="0", local_rank=None, world_size=None, node="n", pid=1, attempt=0,
        state="live", begin_seconds=1.0, last_event_seconds=None, step=None,
        step_begin_seconds=None, inflight=(), totals=SPLIT, current=TimeSplit(), last=None,
        tokens_total={}, queue_depth={}, policy_version=None, scalars=(), stamps=(),
        num_records=5, num_lost_records=0, num_late_records=0, num_guest_drops=0,
    )  # fmt: skip
    return dataclasses.replace(row, **changes)


def exporter(*ranks: RankRow, run: str = "r", problems=()) -> PrometheusExporter:
    agent = AgentRow("0", 1, "n", 0.0, 1, 0.0, 1, 5, 0, 0, 0, None, tuple(problems))
    snapshot = Snapshot(2.0, agent, (RunRow(run, "verl", 0, 1.0, ranks, (), ()),))

    class Source:
        def snapshot(self):
            return snapshot

    return PrometheusExporter(Source())


def samples(page: PrometheusExporter) -> dict[str, list[tuple[dict[str, str], float]]]:
    body, _ = page.render(OPENMETRICS)
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_what_nobody_told_us_has_no_series():
    found = samples(exporter(rank_row()))
    for name in ("dfx_step", "dfx_policy_version", "dfx_rank_step_seconds", "dfx_rank_tokens_total",
                 "dfx_queue_depth", "dfx_rank_inflight_seconds"):  # fmt: skip
        assert name not in found


def test_active_waits_and_idle_are_the_wall():
    found = samples(exporter(rank_row()))
    (_, wall), = found["dfx_rank_wall_seconds_total"]  # fmt: skip
    parts = [found[f"dfx_rank_{part}_seconds_total"] for part in ("active", "wait", "idle")]
    assert sum(value for rows in parts for _, value in rows) == wall == 10.0
    assert {(row["kind"], row["stage"]) for row, _ in found["dfx_rank_wait_seconds_total"]} == {
        ("barrier", "rollout"),
        ("barrier", ""),
    }


def test_scalars_have_canonical_names_and_unmapped_keys_are_kept():
    known = ScalarRow(
        "critic/rewards/mean", "dfx_reward", {"stat": "mean"}, 3, 1.0, Moments.of(0.5)
    )
    strange = ScalarRow("my/own", None, {}, 3, 1.0, Moments.of(math.nan))
    found = samples(exporter(rank_row(scalars=(known, strange))))
    assert found["dfx_reward"] == [
        ({"run": "r", "role": "trainer", "rank": "0", "stat": "mean"}, 0.5)
    ]
    (labels, value), = found["dfx_native_metric"]  # fmt: skip
    assert (labels["key"], labels["framework"]) == ("my/own", "verl")
    assert math.isnan(value)


def test_the_innermost_open_span_and_open_stamps():
    spans = (OpenSpan("stage", "rollout", 1.0, 9.0, 1), OpenSpan("wait", "queue", 2.0, 3.0, 1))
    stamps = (StageStamp("rollout", 0, 1.0, None), StageStamp("reward", 1, 2.0, 3.0))
    found = samples(exporter(rank_row(inflight=spans, stamps=stamps, state="died")))
    (labels, value), = found["dfx_rank_inflight_seconds"]  # fmt: skip
    assert (labels["kind"], labels["stage"], value) == ("wait", "queue", 3.0)
    assert len(found["dfx_stage_start_timestamp_seconds"]) == 2
    assert [row["stage"] for row, _ in found["dfx_stage_end_timestamp_seconds"]] == ["reward"]
    assert found["dfx_rank_up"][0][1] == 0


def test_every_name_and_label_is_the_catalogue_s():
    catalogue = by_name()
    scalar = ScalarRow("actor/lr", "dfx_learning_rate", {"model": "actor"}, 1, 1.0, Moments.of(1.0))
    row = rank_row(
        step=1, policy_version=2, last=SPLIT, tokens_total={"response": 3.0},
        queue_depth={"q": 1.0}, scalars=(scalar,), stamps=(StageStamp("idle", 0, 1.0, 2.0),),
    )  # fmt: skip
    problem = SegmentProblem("/x", "version", "say")
    for name, rows in samples(exporter(row, problems=[problem])).items():
        if name.startswith("dfx_"):
            metric = catalogue[name.removesuffix("_total").removesuffix("_info")]
            for labels, _ in rows:
                assert set(labels) == set(metric.labels), name


HOSTILE = 'a"b\\c\nd{e="f"} 1\n# EOF'


def test_names_from_the_job_cannot_break_the_exposition():
    scalar = ScalarRow(HOSTILE, None, {}, 1, 1.0, Moments.of(1.0))
    page = exporter(rank_row(tokens_total={HOSTILE: 1.0}, scalars=(scalar,)), run=HOSTILE)
    assert samples(page)["dfx_native_metric"][0][0]["key"] == HOSTILE
    text, content_type = page.render(None)
    assert content_type.startswith("text/plain")
    kinds = {
        sample.labels["kind"]
        for family in parse_text(text.decode())
        for sample in family.samples
        if sample.name == "dfx_rank_tokens_total"
    }
    assert kinds == {HOSTILE}


@pytest.mark.parametrize("accept", [None, OPENMETRICS])
def test_the_page_says_what_the_library_s_own_encoder_says(accept):
    odd = [math.nan, math.inf, -math.inf, 0.0, -1.5e-300, 1e22, 1795224968.123456]
    scalars = tuple(ScalarRow(f"k{n}", None, {}, 1, 1.0, Moments.of(v)) for n, v in enumerate(odd))
    row = rank_row(step=2**62, last=SPLIT, tokens_total={HOSTILE: 3.0}, scalars=scalars)
    page = exporter(row, run=HOSTILE)
    encode, content_type = choose_encoder(accept or "")
    parse = text_string_to_metric_families if accept else parse_text

    def said(text: str):
        return [
            (f.name, f.type, f.documentation, f.unit, [(s.name, s.labels, str(s.value))])
            for f in parse(text)
            for s in f.samples
            if not s.name.startswith("process_")
        ]

    body, ours = page.render(accept)
    assert ours == content_type
    assert said(body.decode()) == said(encode(page._registry).decode())
    assert page.render(accept)[0].count(b"\n") == body.count(b"\n"), "kept labels change nothing"


@pytest.mark.parametrize("run", ["r", HOSTILE])
def test_promtool_accepts_the_page(promtool_binary, run):
    row = rank_row(step=1, last=SPLIT, tokens_total={"response": 3.0})
    text, _ = exporter(row, run=run).render("text/plain")
    checked = subprocess.run(
        [promtool_binary, "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")

"""A snapshot as Prometheus sees it."""

import dataclasses
import math
import subprocess

import pytest
from full_rank import BY_ARRIVAL, full_rank
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_page import FAR_SECONDS, OPENMETRICS, SPLIT, STEPS, exporter, rank_row, samples

from dfx_agent.catalogue import agent, collectives, memory, performance, training, verdicts
from dfx_agent.catalogue import per_rank as balance
from dfx_agent.catalogue.spec import by_name, metrics_of
from dfx_agent.catalogue.verdicts import NO_STAGE
from dfx_agent.job.incidents.book import IncidentBook, StepTimes
from dfx_agent.snapshot import (
    DeviceMemory,
    DeviceRow,
    DroppedRanks,
    GroupRow,
    HostMemory,
    Incident,
    Moments,
    OpenSpan,
    ScalarRow,
    SegmentProblem,
    StageStamp,
    Standing,
    Verdict,
)

SECONDS = "dfx_rank_collective_seconds_total"


def test_unreported_values_have_no_series():
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


def test_scalars_have_canonical_names_and_unmapped_keys_stay():
    known = ScalarRow(
        "critic/rewards/mean", "dfx_reward", {"stat": "mean"}, 3, 1.0, Moments.of_value(0.5)
    )
    strange = ScalarRow("my/own", None, {}, 3, 1.0, Moments.of_value(math.nan))
    found = samples(exporter(rank_row(scalars=(known, strange))))
    ((reward, value),) = found["dfx_reward"]
    result = {name: text for name, text in reward.items() if text}
    assert result == {"run": "r", "role": "trainer", "rank": "0", "stat": "mean"}
    assert value == 0.5
    (labels, value), = found["dfx_native_metric"]  # fmt: skip
    assert (labels["key"], labels["framework"]) == ("my/own", "verl")
    assert math.isnan(value)


def scalar(key: str, metric: str | None, labels: dict[str, str], value: float) -> ScalarRow:
    return ScalarRow(key, metric, labels, 3, 1.0, Moments.of_value(value))


def test_of_several_keys_of_one_series_the_mapping_s_first_is_exported():
    """Whatever order the keys came in: a series must not change its source between scrapes."""
    rows = (
        scalar("torch/actor/grad_norm", "dfx_actor_grad_norm", {}, 9.0),
        scalar("actor/grad_norm", "dfx_actor_grad_norm", {}, 1.0),
        scalar("perf/time_per_step", "dfx_step_seconds", {}, 8.0),
        scalar("timing_s/step", "dfx_step_seconds", {}, 2.0),
    )
    for order in (rows, rows[::-1]):
        found = samples(exporter(rank_row(scalars=order)))
        assert [value for _, value in found["dfx_actor_grad_norm"]] == [1.0]
        assert [value for _, value in found["dfx_step_seconds"]] == [2.0]


def test_a_framework_s_number_gives_way_to_what_the_guest_measures():
    rows = (
        scalar("fully_async/monitor/active_tasks_size", "dfx_queue_depth", {"queue": "q"}, 7.0),
        scalar("fully_async/count/current_param_version", "dfx_policy_version", {}, 6.0),
    )
    alone = samples(exporter(rank_row(scalars=rows)))
    assert alone["dfx_queue_depth"][0][1] == 7.0
    assert alone["dfx_policy_version"][0][1] == 6.0
    page = exporter(rank_row(scalars=rows, queue_depth={"q": 1.0}, policy_version=2))
    assert samples(page)["dfx_queue_depth"][0][1] == 1.0
    assert samples(page)["dfx_policy_version"][0][1] == 2.0
    text, _ = page.render(None)  # parsers hide a series written twice
    assert text.count(b"\ndfx_queue_depth{") == text.count(b"\ndfx_policy_version{") == 1


def test_keys_without_a_mapping_are_counted_and_bounded():
    rows = [scalar(f"my/{i}", None, {}, i) for i in range(203)]
    rows.append(scalar("actor/ppo_kl", "dfx_policy_kl_k1_nats", {}, 0.1))
    found = samples(exporter(rank_row(scalars=tuple(rows))))
    assert found["dfx_unmapped_keys"][0][1] == 203
    assert found["dfx_unexported_keys"][0][1] == 3
    stored = [labels["key"] for labels, _ in found["dfx_native_metric"]]
    assert stored == [f"my/{i}" for i in range(200)], "always the same ones"


def test_tokens_of_the_last_step_count_over_its_wall_time():
    ((labels, rate),) = samples(exporter())["dfx_pipeline_tokens_per_second"]
    assert (labels["role"], labels["kind"], rate) == ("trainer", "response", 30.0)


def test_a_running_total_of_a_framework_is_a_counter():
    row = scalar("num_tokens", "dfx_tokens", {}, 1234.0)
    assert samples(exporter(rank_row(scalars=(row,))))["dfx_tokens_total"][0][1] == 1234.0


def test_the_innermost_open_span_and_open_stamps():
    spans = (OpenSpan("stage", "rollout", 1.0, 9.0, 1), OpenSpan("wait", "queue", 2.0, 3.0, 1))
    stamps = (StageStamp("rollout", 0, 1.0, None), StageStamp("reward", 1, 2.0, 3.0))
    found = samples(exporter(rank_row(inflight=spans, stamps=stamps, state="died")))
    (labels, value), = found["dfx_rank_inflight_seconds"]  # fmt: skip
    assert (labels["kind"], labels["stage"], value) == ("wait", "queue", 3.0)
    assert len(found["dfx_stage_start_timestamp_seconds"]) == 2
    assert [row["stage"] for row, _ in found["dfx_stage_end_timestamp_seconds"]] == ["reward"]
    assert found["dfx_rank_up"][0][1] == 0


def test_a_collective_is_no_innermost_stage():
    spans = (
        OpenSpan("stage", "backward", 1.0, 9.0, 1),
        OpenSpan("collective", "all_reduce@tp@0", 2.0, 3.0, None, 1234),
        OpenSpan("collective", "all_reduce@tp@0", 1.0, 4.0, None, 1233),
    )
    found = samples(exporter(rank_row(inflight=spans)))
    (labels, value), = found["dfx_rank_inflight_seconds"]  # fmt: skip
    assert (labels["kind"], labels["stage"], value) == ("stage", "backward", 9.0)
    (labels, value), = found["dfx_rank_inflight_collective_seconds"]  # fmt: skip
    assert (labels["operation"], labels["group"], value) == ("all_reduce@tp", "0", 4.0)


def test_a_collective_outside_any_stage_leaves_nothing_else_in_flight():
    span = OpenSpan("collective", "barrier@0", 2.0, 3.0, None)
    found = samples(exporter(rank_row(inflight=(span,))))
    assert "dfx_rank_inflight_seconds" not in found
    assert len(found["dfx_rank_inflight_collective_seconds"]) == 1


def test_collective_time_by_part():
    found = samples(exporter(rank_row(collectives=(BY_ARRIVAL,))))
    parts = {row["part"]: value for row, value in found[SECONDS]}
    assert parts == {"peers": 1.5, "transfer": 0.25, "unmatched": 0.0}
    assert {(r["group"], r["stage"], r["method"]) for r, _ in found[SECONDS]} == {
        ("0", "backward", "arrival")
    }
    assert found["dfx_rank_collectives_total"][0][1] == 12
    assert found["dfx_rank_collective_bytes_total"][0][1] == 4096.0


def test_time_on_a_device_is_a_series_of_its_own_and_has_no_bytes():
    device = dataclasses.replace(BY_ARRIVAL, method="device", num_collectives=3, num_bytes=None)
    found = samples(exporter(rank_row(collectives=(BY_ARRIVAL, device))))
    peers = {row["method"]: value for row, value in found[SECONDS] if row["part"] == "peers"}
    assert peers == {"arrival": 1.5, "device": 1.5}
    counts = {row["method"]: value for row, value in found["dfx_rank_collectives_total"]}
    assert counts == {"arrival": 12, "device": 3}
    assert [row["method"] for row, _ in found["dfx_rank_collective_bytes_total"]] == ["arrival"]


def test_a_thousand_groups_are_summed_beyond_the_first():
    groups = tuple(GroupRow(str(n), n, None, 1.0) for n in range(1000))
    rows = tuple(dataclasses.replace(BY_ARRIVAL, group=str(n)) for n in range(1000))
    found = samples(exporter(rank_row(groups=groups, collectives=rows)))
    assert len(found["dfx_group_enqueued"]) == 32
    assert found["dfx_rank_groups"][0][1] == 1000
    counts = {row["group"]: value for row, value in found["dfx_rank_collectives_total"]}
    assert len(counts) == 33
    assert (counts["31"], counts["other"]) == (12, 968 * 12)
    seconds = {(r["group"], r["part"]): value for r, value in found[SECONDS]}
    assert seconds["other", "peers"] == 968 * 1.5


def test_what_a_backend_does_not_count_has_no_series():
    found = samples(exporter(rank_row(groups=(GroupRow("0", 7, None, None),))))
    assert found["dfx_group_enqueued"][0][1] == 7
    assert "dfx_group_completed" not in found
    assert "dfx_collective_coverage_ratio" not in found


def test_counts_have_names_and_unknown_ones_stay():
    counts = {"micro_batches": 8.0, "optimizer_steps": 2.0, "skipped_updates": 1.0, "new": 3.0}
    found = samples(exporter(rank_row(counters_total=counts)))
    assert found["dfx_micro_batches_total"][0][1] == 8.0
    assert found["dfx_optimizer_steps_total"][0][1] == 2.0
    assert found["dfx_skipped_updates_total"][0][1] == 1.0
    assert "dfx_nonfinite_gradients_total" not in found
    (labels, value), = found["dfx_native_count_total"]  # fmt: skip
    assert (labels["key"], value) == ("new", 3.0)


def test_gauges_say_how_the_job_is_observed():
    gauges = {
        "patch/collectives": 1.0, "patch/backward": 0.0, "patch/ddp": -1.0,
        "guest/overhead_ratio": 0.0004, "guest/given_up": 1.0,
        "memory/allocated_bytes@cuda:0": 1.0, "new/one": 5.0,
        "heap/used_bytes": 1.0, "heap/num_free_pieces": 2.0,
    }  # fmt: skip
    found = samples(exporter(rank_row(gauges=gauges)))
    assert {row["name"]: value for row, value in found["dfx_patch_active"]} == {
        "collectives": 1.0,
        "backward": 0.0,
        "ddp": 0.0,
    }
    assert [row["name"] for row, _ in found["dfx_patch_failed"]] == ["ddp"]
    assert found["dfx_guest_overhead_ratio"][0][1] == 0.0004
    assert found["dfx_guest_given_up"][0][1] == 1.0
    assert [row["key"] for row, _ in found["dfx_native_metric"]] == ["new/one"]


def test_memory_of_devices_and_host():
    device = DeviceMemory("cuda:0", 3.0, 4.0, None, 2.0, None, {"rollout": 3.5})
    found = samples(exporter(rank_row(devices=(device,), host_memory=HostMemory(9.0))))
    assert found["dfx_gpu_mem_allocated_bytes"][0][1] == 3.0
    assert found["dfx_gpu_mem_fragmentation_ratio"][0][1] == 0.25
    assert found["dfx_gpu_mem_alloc_retries_total"][0][1] == 2.0
    (labels, value), = found["dfx_gpu_mem_stage_peak_bytes"]  # fmt: skip
    assert (labels["device"], labels["stage"], value) == ("cuda:0", "rollout", 3.5)
    assert found["dfx_host_memory_anonymous_bytes"][0][1] == 9.0
    for name in (
        "dfx_gpu_mem_limit_bytes",
        "dfx_gpu_mem_ooms_total",
        "dfx_host_memory_slope_bytes",
    ):
        assert name not in found, "absent is not zero"
    empty = DeviceMemory("cuda:0", 0.0, 0.0)
    assert "dfx_gpu_mem_fragmentation_ratio" not in samples(exporter(rank_row(devices=(empty,))))


def incident() -> Incident:
    (row,) = IncidentBook("r").observe([verdict(step=4)], (), None, StepTimes(), 1700.0)
    return row


def test_an_incident_is_one_series_for_each_rank_to_blame_and_the_run_has_one_state():
    standing = Standing("found", "say")
    found = samples(exporter(incidents=(incident(),), standing=standing))
    begins = found["dfx_incident_begin_timestamp_seconds"]
    assert [(row["rank"], row["kind"], value) for row, value in begins] == [
        ("2", "straggler", 1700.0),
        ("3", "straggler", 1700.0),
    ]
    assert {value for _, value in found["dfx_incident_begin_step"]} == {4}
    ((labels, value),) = found["dfx_run_state"]
    assert (labels["state"], labels["node"], value) == ("found", "n", 1)


def verdict(**changes) -> Verdict:
    row = Verdict("straggler", "found", "trainer", "say", ("2", "3"), "backward", "slower",
                  lost_seconds=0.5)  # fmt: skip
    return dataclasses.replace(row, **changes)


def test_a_verdict_blames_each_of_its_ranks():
    found = samples(exporter(verdicts=[verdict()]))
    assert [(row["rank"], row["cause"], value) for row, value in found["dfx_verdict_active"]] == [
        ("2", "slower", 1.0),
        ("3", "slower", 1.0),
    ]
    assert {row["rank"]: v for row, v in found["dfx_straggler_lost_seconds"]} == {
        "2": 0.5,
        "3": 0.5,
    }
    (labels, value), = found["dfx_verdict_state"]  # fmt: skip
    assert (labels["kind"], labels["state"], value) == ("straggler", "found", 1.0)


@pytest.mark.parametrize(
    ("kind", "stage", "said"),
    [
        ("hang", "idle", NO_STAGE),
        ("crash", "idle", NO_STAGE),
        ("straggler", "", NO_STAGE),
        ("hang", "rollout", "rollout"),
        ("memory", "", ""),
    ],
)
def test_a_rank_outside_all_stages_is_not_in_a_stage_called_idle(kind, stage, said):
    """Alerts say the label: "rank 1 in idle (died)", "rank 0, mostly in  (late start)"."""
    found = samples(exporter(verdicts=[verdict(kind=kind, stage=stage, ranks=("1",))]))
    assert [row.get("stage", "") for row, _ in found["dfx_verdict_active"]] == [said]


@pytest.mark.parametrize("state", ["clear", "insufficient evidence"])
def test_no_finding_blames_nobody(state):
    found = samples(exporter(verdicts=[verdict(state=state)]))
    assert found["dfx_verdict_state"][0][0]["state"] == state
    assert "dfx_verdict_active" not in found
    assert "dfx_straggler_lost_seconds" not in found


def test_verdicts_that_agree_are_one_series():
    page = exporter(verdicts=[verdict(), verdict(lost_seconds=0.75), verdict(ranks=())])
    found = samples(page)
    assert [row["rank"] for row, _ in found["dfx_verdict_active"]] == ["2", "3", ""]
    assert {row["rank"]: v for row, v in found["dfx_straggler_lost_seconds"]}["2"] == 0.75
    assert len(found["dfx_verdict_state"]) == 1


def test_the_framework_s_own_value_wins_over_the_guest_s():
    def row(key, value):
        return ScalarRow(key, "dfx_actor_grad_norm", {}, 1, 1.0, Moments.of_value(value))

    both = row("torch/actor/grad_norm", 2.0), row("actor/grad_norm", 1.0)
    assert [v for _, v in samples(exporter(rank_row(scalars=both)))["dfx_actor_grad_norm"]] == [1.0]
    text, _ = exporter(rank_row(scalars=both)).render(None)
    assert text.count(b"\ndfx_actor_grad_norm{") == 1, "parsers hide a series written twice"
    found = samples(exporter(rank_row(scalars=both), rank_row(rank="1", scalars=both[:1])))
    assert [v for _, v in found["dfx_actor_grad_norm"]] == [1.0, 2.0], "a rank without the other"


def test_memory_after_offloading_and_outside_the_allocator():
    found = samples(exporter(full_rank()))
    held = {
        (row["device"], row["stage"], row["point"], row["what"]): value
        for row, value in found["dfx_offload_held_bytes"]
    }
    assert held == {
        ("cuda:0", "actor_update", "end/offload", "allocated"): 1.0,
        ("cuda:0", "actor_update", "end/offload", "reserved"): 2.0,
        ("host", "actor_update", "end/offload", "resident"): 9.0,
        ("host", "actor_update", "end/offload", "virtual"): 19.0,
    }
    assert found["dfx_gpu_mem_beside_allocator_bytes"][0][1] == 7.0
    assert found["dfx_gpu_mem_communication_estimate_bytes"][0][1] == 2.0
    assert found["dfx_gpu_mem_communication_peak_estimate_bytes"][0][1] == 4.0
    assert "dfx_gpu_mem_communication_estimate_bytes" not in samples(exporter(rank_row()))


def test_every_name_and_label_is_the_catalogue_s():
    catalogue = by_name()
    problem = SegmentProblem("/x", "version", "say")
    reported = ScalarRow("n", "dfx_step_samples", {}, STEPS[-1].step, 1.0, Moments.of_value(8.0))
    known = {"problems": [problem], "verdicts": [verdict()], "incidents": (incident(),)}
    known["judged_seconds"] = {"hang": FAR_SECONDS}
    known["sustained_tokens_ratio"] = known["latest_tokens_ratio"] = {"worker": 1.0}
    known["token_imbalance"] = {"worker": 1.0}
    known["devices"] = (DeviceRow("host", 8, 7),)
    known["dropped_ranks"] = (DroppedRanks("worker", 9, 99, 1),)
    found = samples(exporter(full_rank(), scalars=(reported,), **known))
    seen = set()
    for name, rows in found.items():
        if name.startswith("dfx_"):
            metric = catalogue[name.removesuffix("_total").removesuffix("_info")]
            seen.add(metric.name)
            for labels, _ in rows:
                assert set(labels) == set(metric.labels), name
    groups = agent, balance, collectives, memory, performance, training, verdicts
    ours = {m.name for group in groups for m in metrics_of(group) if m.source != "native"}
    assert ours - seen == set(), "every family of a rank, a run and the agent appears"


def test_a_lost_device_has_no_series_and_the_others_have_all():
    lost = DeviceRow("nvidia:1", vendor="nvidia", place=1, problems=("the GPU is lost; reset it",))
    page = exporter(full_rank(), devices=(DeviceRow("nvidia:0", 8, 7, vendor="nvidia"), lost))
    found = samples(page)
    for name in ("dfx_device_memory_total_bytes", "dfx_device_memory_available_bytes"):
        assert [row["device"] for row, _ in found[name]] == ["nvidia:0"]
    problems = {row["device"]: value for row, value in found["dfx_device_problems"]}
    assert problems == {"nvidia:0": 0.0, "nvidia:1": 1.0}


HOSTILE = 'a"b\\c\nd{e="f"} 1\n# EOF'


def test_names_from_the_job_cannot_break_the_exposition():
    scalar = ScalarRow(HOSTILE, None, {}, 1, 1.0, Moments.of_value(1.0))
    row = rank_row(
        tokens_total={HOSTILE: 1.0},
        scalars=(scalar,),
        counters_total={HOSTILE: 1.0},
        gauges={f"patch/{HOSTILE}": 1.0},
        inflight=(OpenSpan("collective", f"{HOSTILE}@{HOSTILE}", 1.0, 1.0, None),),
        collectives=(dataclasses.replace(BY_ARRIVAL, group=HOSTILE, stage=HOSTILE),),
        groups=(GroupRow(HOSTILE, 1, 1, 1.0),),
        devices=(DeviceMemory(HOSTILE, 1.0, stage_peak_bytes={HOSTILE: 1.0}),),
    )
    page = exporter(row, run=HOSTILE, verdicts=[verdict(stage=HOSTILE, cause=HOSTILE)])
    found = samples(page)
    assert found["dfx_native_metric"][0][0]["key"] == HOSTILE
    for name, label in [
        ("dfx_native_count_total", "key"),
        ("dfx_patch_active", "name"),
        ("dfx_rank_inflight_collective_seconds", "operation"),
        ("dfx_rank_collectives_total", "stage"),
        ("dfx_group_enqueued", "group"),
        ("dfx_gpu_mem_stage_peak_bytes", "stage"),
        ("dfx_verdict_active", "cause"),
    ]:
        assert found[name][0][0][label] == HOSTILE, name
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
    scalars = tuple(
        ScalarRow(f"k{n}", None, {}, 1, 1.0, Moments.of_value(v)) for n, v in enumerate(odd)
    )
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
    text, _ = exporter(full_rank(), run=run, verdicts=[verdict()]).render("text/plain")
    checked = subprocess.run(
        [promtool_binary, "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")

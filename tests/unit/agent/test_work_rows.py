"""MFU of a rank: its model FLOPs over the peak of its device, or the reason why not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dfx_agent.agent.config import load
from dfx_agent.agent.config_flops import ConfigFlops
from dfx_agent.agent.peak_flops import PARTS, Peaks
from dfx_agent.agent.work_rows import work_row
from dfx_agent.base.errors import ConfigError
from dfx_agent.catalogue import utilisation
from dfx_agent.catalogue.spec import metrics_of
from dfx_agent.catalogue.utilisation import work_lines
from dfx_agent.node.time.account import Split, StepInterval
from dfx_agent.node.time.closed_step import ClosedStep
from dfx_agent.node.time.work import ClosedWork, Passes, Work
from dfx_agent.snapshot import RunRow
from dfx_agent.wire.job_description import ModelDescription

TERA = 1e12
H100 = ("cuda", "NVIDIA H100 80GB HBM3")
FLOPS = {
    Work("forward", "bfloat16", "update"): 989.4 * TERA,
    Work("backward", "bfloat16", "update"): 989.4 * TERA,
    Work("forward", "bfloat16", "old_logprob"): 98.94 * TERA,
}
MODEL = ModelDescription("Policy", 7_600_000_000, 7_600_000_000, 28, "", ())


def process(
    flops: Any = FLOPS,
    device: Any = H100,
    model: ModelDescription | None = MODEL,
    passes: Any = None,
    driver: str = "",
) -> Any:
    """It took 10 s, 8 of which were its update."""
    window = StepInterval(3, 0, 10 * 10**9, Split(active_ns=10 * 10**9))
    seconds = {"update": 8.0, "actor_update": 8.0, "old_logprob": 1.0}
    work = ClosedWork(flops or {}, seconds, passes or {}) if flops or passes else None
    layout = SimpleNamespace(device=device, models={model.name: model} if model else {})
    return SimpleNamespace(
        follower=SimpleNamespace(layout=layout),
        windows=[ClosedStep(window, work=work)],
        registered_as=SimpleNamespace(role="actor"),
        devices=SimpleNamespace(model=driver),
    )


def test_each_stage_and_the_step_are_held_against_the_peak_of_the_device():
    row = work_row(process(), Peaks())
    assert row is not None
    by_stage = {stage.stage: stage for stage in row.stages}
    assert by_stage["update"].mfu_ratio == pytest.approx(2 / 8)
    assert by_stage["old_logprob"].mfu_ratio == pytest.approx(0.1)
    assert row.mfu_ratio == pytest.approx(2.1 / 10)
    assert (row.peak_source, row.peak_flops_per_second) == ("table", 989.4 * TERA)
    assert (row.step, row.seconds, row.reason) == (3, 10.0, "")


def test_types_of_numbers_have_their_own_peaks():
    mixed = {Work("forward", "bfloat16", "update"): 989.4 * TERA,
             Work("forward", "float32", "update"): 66.9 * TERA}  # fmt: skip
    row = work_row(process(mixed), Peaks())
    assert row is not None
    assert row.mfu_ratio == pytest.approx(2 / 10), "a second at the peak of each"


@pytest.mark.parametrize(
    ("device", "text"),
    [(("cpu", ""), "cpu"), (("cuda", "NVIDIA Z9"), "NVIDIA Z9"), (None, "a device")],
)
def test_without_a_known_peak_there_is_no_mfu_and_the_reason(device: Any, text: str):
    row = work_row(process(device=device), Peaks())
    assert row is not None
    assert (row.mfu_ratio, row.peak_source) == (None, "unknown")
    assert all(stage.mfu_ratio is None for stage in row.stages)
    assert text in row.reason
    assert row.reason.endswith("for bfloat16 is known: set peak_tflops")


def test_the_setting_goes_before_the_table_for_its_type_or_for_all():
    row = work_row(process(), Peaks({"all": 1978.8, "float32": 1.0}))
    assert row is not None
    assert (row.mfu_ratio, row.peak_source) == (pytest.approx(0.105), "override")
    assert Peaks({"float32": 1.0}).peak(H100[1], "bfloat16") == (989.4 * TERA, "table")


def test_a_model_without_a_flop_count_has_a_reason():
    unknown = MODEL._replace(reason="how many experts a token goes to is not known")
    row = work_row(process(flops=None, model=unknown), Peaks())
    assert row is not None
    assert row.reason == "Policy: how many experts a token goes to is not known"
    assert work_row(process(flops=None), Peaks()) is None, "it was met and has not run yet"


CONFIG = ConfigFlops(
    "Llama", "bfloat16", 8_000_000_000, 8_000_000_000, 8_000_000_000, 32, 1e9, 1e6, 2e9, 2e6
)
PASSES = {"actor_update": Passes(1e6, 1e8), "old_logprob": Passes(1e6, 1e8)}
FORWARD = 1e9 * 1e6 + 1e6 * 1e8


def test_where_no_hook_sees_a_model_its_config_json_says_what_its_passes_are():
    row = work_row(process(None, None, None, PASSES, H100[1]), Peaks(), {"all": CONFIG})
    assert row is not None
    by_stage = {stage.stage: stage for stage in row.stages}
    update, before = by_stage["actor_update"], by_stage["old_logprob"]
    assert (update.forward_flops, update.backward_flops) == (FORWARD, 2 * FORWARD)
    assert (before.forward_flops, before.backward_flops) == (FORWARD, 0.0)
    assert update.mfu_ratio == pytest.approx(3 * FORWARD / (8 * 989.4 * TERA))
    assert row.mfu_ratio == pytest.approx(4 * FORWARD / (10 * 989.4 * TERA))
    assert (row.device, [model.name for model in row.models]) == (H100[1], ["Llama"])


def test_what_a_hook_has_counted_in_a_stage_goes_before_the_configuration():
    flops = {Work("forward", "bfloat16", "old_logprob"): 98.94 * TERA}
    row = work_row(process(flops, passes=PASSES), Peaks(), {"actor": CONFIG})
    assert row is not None
    reported = {stage.stage: stage.forward_flops for stage in row.stages}
    assert reported == {"old_logprob": 98.94 * TERA, "actor_update": FORWARD}


def test_without_a_configuration_passes_alone_say_what_is_missing():
    row = work_row(process(None, model=None, passes=PASSES), Peaks(), {"critic": CONFIG})
    assert row is not None
    assert row.reason == "no hook sees its models: set model_config to their config.json"
    assert (row.mfu_ratio, row.stages) == (None, ())


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4), ("NVIDIA H100 PCIe", 756.0), ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA H200", 989.4), ("NVIDIA GH200 480GB", 989.4), ("NVIDIA H20", 148.0),
        ("NVIDIA A100-SXM4-80GB", 312.0), ("NVIDIA A10", 125.0), ("NVIDIA A10G", None),
        ("NVIDIA L40S", 362.05), ("NVIDIA L4", 121.0), ("NVIDIA B200", 2250.0),
        ("NVIDIA GB200", 2500.0), ("AMD Instinct MI300X", 1307.4), ("Ascend910A", 256.0),
        ("Ascend910B2", 353.9), ("Ascend910B2C", 353.9), ("Ascend910B4-1", 245.8),
        ("Ascend 910B1", 24 * 16**3 * 2 * 1.85e-3), ("Ascend910B3", 20 * 16**3 * 2 * 1.8e-3),
        ("Ascend910_9391", 363.7), ("Ascend910_9362", 245.8), ("Ascend910_9381", None),
        ("Ascend910", None), ("Tesla V100-SXM2-32GB", None), ("", None),
    ],
)  # fmt: skip
def test_names_as_drivers_say_them(name: str, tflops: float | None):
    peak, source = Peaks().peak(name, "bfloat16")
    assert peak == (None if tflops is None else pytest.approx(tflops * TERA, rel=1e-4))
    assert source == ("unknown" if tflops is None else "table")
    assert all(part.source for part in PARTS)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("989", {"all": 989.0}),
        ("bfloat16=989, tf32=494", {"bfloat16": 989.0, "tf32": 494.0}),
    ],
)
def test_the_setting_is_a_number_or_one_for_each_type(text: str, known: dict[str, float]):
    assert load({"directory": "/tmp"}, {"DFX_PEAK_TFLOPS": text}, None).peak_tflops == known


@pytest.mark.parametrize("text", ["fast", "bfloat16=", "0", "-1", "nan"])
def test_what_is_no_speed_is_refused(text: str):
    with pytest.raises(ConfigError, match="peak_tflops must be TFLOP/s, as in 989"):
        load({"directory": "/tmp"}, {"DFX_PEAK_TFLOPS": text}, None)


def rank(row: Any, **counters: float) -> Any:
    return SimpleNamespace(role="trainer", work=row, counters_total=counters)


def run(*rows: Any) -> RunRow:
    return RunRow("r", "", 0, 0.0, tuple(map(rank, rows)), (), ())


def test_the_lines_of_page_and_report():
    (line,) = work_lines(run(work_row(process(), Peaks())))
    assert line == (
        "trainer: MFU 21.00% of the step (peak 989 TFLOP/s, by table): "
        "old_logprob 10.00%, update 25.00% · Policy 7.6 G parameters"
    )
    (line,) = work_lines(run(work_row(process(device=("cpu", "")), Peaks())))
    assert line == (
        "trainer: no MFU: no peak of cpu for bfloat16 is known: set peak_tflops; "
        "old_logprob 98.9 TFLOP/s, update 247 TFLOP/s · Policy 7.6 G parameters"
    )
    assert work_lines(run(None)) == ()


def test_the_families():
    values = {m.name: m.value for m in metrics_of(utilisation)}
    known = rank(work_row(process(), Peaks()), **{"flops/forward/bfloat16/update": 2.0,
                 "flops/forward/float32/update": 1.0, "micro_batches": 9.0})  # fmt: skip
    assert values["dfx_rank_model_flops"](known) == {("forward", "update"): 3.0}
    assert values["dfx_rank_step_mfu_ratio"](known) == {("table",): pytest.approx(0.21)}
    assert values["dfx_rank_mfu_ratio"](known)["update", "table"] == pytest.approx(0.25)
    assert values["dfx_rank_mfu_unknown"](known) == {}
    blind = rank(work_row(process(device=None), Peaks()))
    assert values["dfx_rank_mfu_ratio"](blind) == values["dfx_rank_step_mfu_ratio"](blind) == {}
    assert list(values["dfx_rank_mfu_unknown"](blind).values()) == [1.0]
    assert all(value(rank(None)) == {} for value in values.values())

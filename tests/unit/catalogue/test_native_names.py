"""Native keys find their metric: coverage of real key lists, priorities, unknown frameworks."""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.catalogue import native, per_rank, performance, training, weight_sync
from dfx_agent.catalogue.native import OWN_PREFIX, Native, frameworks, load
from dfx_agent.catalogue.spec import by_name

ROOT = Path(__file__).parents[3]
LISTS = sorted((Path(__file__).parent / "keys").glob("*.txt"))
# what the specification asks for; ROLL's and TRL's further losses have many names of their own,
# and the Trainer logs totals of the run
LEAST_COVERED = {"trl": 0.75, "roll": 0.75, "transformers": 0.7}
# the guest measures these too; the exporter leaves out what the framework says about the same
ALSO_MEASURED = {
    per_rank.QUEUE_DEPTH.name,
    performance.POLICY_VERSION.name,
    weight_sync.UPDATE_SECONDS.name,
}
# what torch.yaml maps to and no framework does
OWN = {training.GRAD_NORM.name, training.LOSS.name}


def keys_of(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_every_framework_has_a_key_list():
    assert {path.stem for path in LISTS} == set(frameworks())


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_the_keys_of_a_framework_are_known(path: Path):
    names, keys = load(path.stem), keys_of(path)
    unknown = [key for key in keys if names.find(key) is None]
    covered = 1 - len(unknown) / len(keys)
    print(f"{path.stem}: {covered:.1%} of {len(keys)} keys; unmapped: {unknown}")
    assert covered >= LEAST_COVERED.get(path.stem, 0.95), unknown


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_a_key_has_values_for_labels_of_the_catalogue_only(path: Path):
    for key in keys_of(path):
        found = load(path.stem).find(key)
        if found:
            metric = by_name()[found.metric]
            assert set(found.labels) <= set(metric.labels) - {"run", "role", "rank"}, key


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_a_job_of_an_unknown_framework_is_not_told_something_else(path: Path):
    """Its keys have the metric that the framework's own file gives, if that knows them."""
    for key in keys_of(path):
        guess, known = load("").find(key), load(path.stem).find(key)
        assert guess is None or known is None or guess == known, key


@pytest.mark.parametrize(
    "key",
    [
        # UniLab's, of which OpenRLHF's pattern knows no more than "timing/"
        "timing/learner_anything_ms", "timing/learner_train_ms",
        # of one framework, in a unit that the key does not say
        "perf/mfu", "perf/peak_memory", "perf/max_memory_allocated_gb", "Perf/iteration_time",
        "time/rollout", "timeperf/rollout", "timing/generation", "step_time",
    ],
)  # fmt: skip
def test_a_unit_is_never_guessed(key):
    assert load("").find(key) is None


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_a_time_of_an_unknown_framework_is_what_its_key_says(path: Path):
    for key in keys_of(path):
        found = load("").find(key)
        if found and by_name()[found.metric].unit == "seconds":
            assert found.scale == (0.001 if "_ms" in key else 1.0), key
            assert re.search(r"_ms(/|$)|_s(/|$)|_seconds|^timing_s/", key), key


@pytest.mark.parametrize("framework", frameworks())
def test_native_values_are_not_mixed_with_measured_ones(framework: str):
    """A key maps to a metric that only frameworks report, so no series has two sources."""
    for entry in load(framework).entries():
        source = by_name()[entry.metric].source
        assert source == "native" or entry.metric in ALSO_MEASURED | OWN, entry


@pytest.mark.parametrize(
    ("framework", "key", "metric", "scale"),
    [
        ("roll", "actor/policykl", "dfx_policy_kl_k1_nats", -1),  # new - old
        ("areal", "ppo_actor/approx_kl/avg", "dfx_policy_kl_k1_nats", -1),
        ("openrlhf", "ppo_kl", "dfx_policy_kl_k1_nats", 1),
        ("prime_rl", "perf/mfu", "dfx_mfu_ratio", 0.01),  # percent
        ("unilab", "Perf/learner_collector_wait_ms", "dfx_learner_wait_seconds", 0.001),
        ("unilab", "Perf/learning_time", "dfx_stage_seconds", 1),  # seconds among *_ms
        ("verl", "perf/max_memory_allocated_gb", "dfx_gpu_mem_peak_allocated_bytes", 2**30),
        ("verl", "checkpoint_engine/payload_mbytes", "dfx_weight_sync_bytes", 2**20),
        ("slime", "perf/actor_train_tflops", "dfx_flops_per_second_per_gpu", 1e12),
    ],
)
def test_units_and_signs_are_the_catalogue_s(framework, key, metric, scale):
    found = load(framework).find(key)
    assert found is not None
    assert (found.metric, found.scale) == (metric, scale)


@pytest.mark.parametrize(
    ("framework", "key", "stat"),
    [
        ("slime", "rollout/response_len/median", "p50"),
        ("verl", "fully_async/processing_time/tp95", "p95"),
        ("verl", "fully_async/processing_time/avg", "mean"),
        ("prime_rl", "event_loop_lag/med", "p50"),
    ],
)
def test_statistics_have_one_spelling(framework, key, stat):
    found = load(framework).find(key)
    assert found is not None
    assert found.labels["stat"] == stat


@pytest.mark.parametrize(
    ("framework", "key", "metric", "labels"),
    [
        ("verl", "timing_s/weight_sync_pause", "dfx_weight_update_seconds", {"part": "pause"}),
        (
            "verl", "weight_sync/replica_1/transfer_seconds",
            "dfx_weight_update_seconds", {"part": "transfer", "receiver": "1"},
        ),
        ("verl", "weight_sync/replica_12/bytes", "dfx_weight_sync_bytes", {"receiver": "12"}),
        ("verl", "weight_sync/lost_receivers", "dfx_weight_sync_lost_receivers", {}),
        ("trl", "perf/weight_sync_barrier_s", "dfx_weight_update_seconds", {"part": "barrier"}),
        ("trl", "perf/weight_sync_s", "dfx_stage_seconds", {"stage": "weight_sync"}),
    ],
)  # fmt: skip
def test_weight_sync_is_told_by_part_and_receiver(framework, key, metric, labels):
    assert load(framework).find(key) == Native(metric, labels)


def test_the_learner_s_waits_stay_apart():
    waits = ("collector_wait", "replay_batch_wait", "rank_barrier", "sync_coordination")
    found = [load("unilab").find(f"timing/learner_{wait}_ms") for wait in waits]
    assert len({wait.labels["cause"] for wait in found if wait}) == len(waits)


@pytest.mark.parametrize(
    ("framework", "key", "spelling"),
    [
        ("openrlhf", "train/ppo_kl", "ppo_kl"),
        ("roll", "critic/score/mean@mean", "critic/score/mean"),
        ("slime", "train/grad_norm", "train/grad_norm"),  # its own prefix, not a tracker's
        ("verl", "val-core/aime/acc/mean@16", "val-core/aime/acc/mean@16"),
        ("verl", "train/nothing", None),
    ],
)
def test_what_trackers_add_to_a_key_is_seen_through(framework, key, spelling):
    assert load(framework).spelling(key) == spelling
    assert (load(framework).find(key) is None) == (spelling is None)


def test_keys_of_one_series_have_an_order():
    names = load("verl")
    in_order = ["timing_s/step", "perf/time_per_step"]
    assert names.find(in_order[0]) == names.find(in_order[1])
    assert names.priority(in_order[0]) < names.priority(in_order[1])
    assert names.priority("actor/grad_norm") < names.priority("torch/actor/grad_norm")
    assert names.priority("torch/actor/grad_norm") < names.priority("nobody/knows")


def names_of_a_pipeline() -> list[str]:
    """Every name in the table of the page, with something for each word in capitals."""
    page = ROOT / "docs" / "reference" / "pipeline-names.md"
    rows = [line.split("|")[1] for line in page.read_text().splitlines() if line.startswith("| `")]
    names = [name for row in rows for name in re.findall(r"`(pipeline/[^`]+)`", row)]
    for word, text in {"ENV": "all", "STAT": "p90", "LAG": "4-7", "PART": "tool"}.items():
        names = [re.sub(rf"\b{word}\b", text, name) for name in names]
    return names


def test_names_of_a_pipeline_mean_the_same_in_every_job():
    names = names_of_a_pipeline()
    assert len(names) > 30
    for name in names:
        found = [load(framework).find(name) for framework in ("", "nobody", *frameworks())]
        assert found[0] is not None, name
        assert found == [found[0]] * len(found)
        assert load("verl").priority(name) > load("verl").priority("timing_s/step")


def test_every_name_of_a_pipeline_is_on_its_page():
    names = names_of_a_pipeline()
    shown = {found.metric for found in map(load("").find, names) if found}
    own = yaml.safe_load((Path(str(native.__file__)).parent / "pipeline.yaml").read_text())
    assert shown == set(own)


@pytest.mark.parametrize("spelling", ["prime-rl", "prime_rl", "Prime-RL"])
def test_a_framework_is_found_by_its_package_s_name(spelling):
    assert load(spelling).find("optim/grad_norm") == Native("dfx_actor_grad_norm", {})


@pytest.mark.parametrize("framework", ["", "nobody", "torch", "../../etc/passwd"])
def test_an_unknown_framework_gets_what_all_agree_on(framework):
    names = load(framework)
    assert names.find("actor/ppo_kl") == Native("dfx_policy_kl_k1_nats", {})
    assert names.find("torch/grad_norm") == Native("dfx_grad_norm", {})
    # the score of rewards means one thing to TRL and another to OpenRLHF
    assert load("trl").find("reward") != load("openrlhf").find("reward")
    assert names.find("reward") is None
    # expressions that begin with a wildcard fit everybody's keys
    assert load("areal").find("discriminator/grad_norm") is not None
    assert names.find("discriminator/grad_norm") is None
    assert load("prime_rl").find("batch/size") is not None
    assert names.find("batch/size") is None


@given(st.text(max_size=60), st.sampled_from([*frameworks(), ""]))
def test_any_key_is_looked_up_without_an_error(key, framework):
    found = load(framework).find(key)
    assert found is None or found.metric in by_name()
    assert load(framework).find(key) == found


def test_another_thread_may_empty_the_memory_at_any_line(monkeypatch):
    class EmptiedAtOnce(dict):
        def __setitem__(self, key, value):
            super().__setitem__(key, value)
            self.clear()

    names = load("trl")
    monkeypatch.setattr(names, "_cache", EmptiedAtOnce())
    assert names.find("reward") == Native("dfx_reward", {"stat": "mean"})
    assert names.find("nobody/knows") is None


@given(st.text("abcz_/0", max_size=30))
def test_the_guest_s_keys_belong_to_no_framework(rest):
    """Whatever comes behind "torch/", every file gives the same answer or its own none."""
    own = load("torch").find(OWN_PREFIX + rest)
    assert all(load(name).find(OWN_PREFIX + rest) == own for name in frameworks())


@pytest.mark.parametrize(
    "path", sorted(Path(str(native.__file__)).parent.glob("*.yaml")), ids=lambda p: p.stem
)
def test_a_file_names_each_metric_once(path: Path):
    """YAML keeps the last of two: the names of the first would be lost."""
    metrics = re.findall(r"^(\w+):", path.read_text(), re.MULTILINE)
    assert len(set(metrics)) == len(metrics)


def test_expressions_match_whole_keys_and_say_so():
    files = Path(str(native.__file__)).parent.glob("*.yaml")
    for path in files:
        for name in re.findall(r're:([^"]+)"', path.read_text()):
            assert not name.startswith("^"), (path.name, name)
            assert not name.endswith("$"), (path.name, name)

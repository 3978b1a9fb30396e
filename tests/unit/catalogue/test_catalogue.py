"""The catalogue is complete, consistent and says what a person needs."""

import ast
import re
from pathlib import Path

import pytest

from bench.metrics_page import render
from dfx_agent.catalogue import spec
from dfx_agent.catalogue.native import frameworks, load
from dfx_agent.catalogue.spec import Metric, by_name, catalogue

BASE_UNITS = {"", "seconds", "bytes", "ratio", "tokens", "nats"}
METRICS = list(by_name().values())


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_follows_the_naming_rules(metric: Metric):
    assert re.fullmatch(r"dfx_[a-z0-9_]+", metric.name)
    assert not metric.name.endswith("_total"), "the suffix belongs to the sample, not to the family"
    assert metric.unit in BASE_UNITS
    assert metric.help.endswith("."), "help is a sentence"
    assert len(set(metric.labels)) == len(metric.labels)
    assert not {"job", "instance", "step", "request"} & set(metric.labels)


def test_a_declared_metric_is_listed():
    """A metric that is neither a constant nor in a tuple would have no page in the docs."""
    for group, metrics in catalogue():
        tree = ast.parse(Path(spec.__file__).with_name(f"{group}.py").read_text())
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
        made = [call.args[0] for call in calls if ast.unparse(call.func) in {"Metric", "native"}]
        names = {name.value for name in made if isinstance(name, ast.Constant)}
        assert names <= {metric.name for metric in metrics}


def test_every_mapping_leads_to_a_metric_of_the_catalogue_with_its_labels():
    for framework in frameworks():
        for native in load(framework).entries():
            labels = set(by_name()[native.metric].labels)
            assert set(native.labels) <= labels, native


@pytest.mark.parametrize(
    ("key", "metric", "labels"),
    [
        ("actor/ppo_kl", "dfx_policy_kl_k1_nats", {}),
        ("critic/rewards/mean", "dfx_reward", {"stat": "mean"}),
        ("actor/reward_kl_penalty", "dfx_ref_kl_nats", {"variant": "reward"}),
        ("critic/lr", "dfx_learning_rate", {"model": "critic"}),
        ("timing_s/gen", "dfx_stage_seconds", {"stage": "rollout"}),
        ("response_length_non_aborted/max", "dfx_response_length_tokens",
         {"stat": "max", "variant": "non_aborted"}),
    ],
)  # fmt: skip
def test_a_verl_key_is_found(key, metric, labels):
    native = load("verl").find(key)
    assert native is not None
    assert (native.metric, dict(native.labels)) == (metric, labels)


@pytest.mark.parametrize("key", ["actor/ppo_kl/x", "xactor/ppo_kl", "critic/rewards/median", ""])
def test_a_key_that_only_looks_alike_is_not_mapped(key):
    assert load("verl").find(key) is None


@pytest.mark.parametrize("framework", ["", "nobody", "torch", *frameworks()])
@pytest.mark.parametrize(
    ("key", "metric", "labels"),
    [
        ("torch/grad_norm", "dfx_grad_norm", {}),
        ("torch/reward_model/grad_norm", "dfx_grad_norm", {"model": "reward_model"}),
        ("torch/actor/grad_norm", "dfx_actor_grad_norm", {}),
        ("torch/critic/grad_norm", "dfx_critic_grad_norm", {}),
        ("torch/lr", "dfx_learning_rate", {}),
        ("torch/actor/lr", "dfx_learning_rate", {"model": "actor"}),
        ("torch/loss", "dfx_loss", {}),
        ("torch/critic/loss", "dfx_loss", {"model": "critic"}),
    ],
)
def test_the_guest_s_own_keys_are_known_under_every_framework(framework, key, metric, labels):
    native = load(framework).find(key)
    assert native is not None
    assert (native.metric, dict(native.labels)) == (metric, labels)


def test_the_guest_s_key_and_the_framework_s_lead_to_one_series():
    """The exporter can then tell that they are the same, and keeps the framework's."""
    names = load("verl")
    for native, own in [
        ("actor/grad_norm", "torch/actor/grad_norm"),
        ("critic/lr", "torch/critic/lr"),
    ]:
        assert names.find(native) == names.find(own)


def test_the_page_of_metrics_names_the_sample_that_a_query_uses():
    page = render()
    assert "`dfx_rank_active_seconds_total`" in page
    assert "`dfx_rank_info`" in page

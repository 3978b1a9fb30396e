"""Names in the released wheels: each is shown or listed as hidden, and ours are declared."""

from pathlib import Path

import pytest

from dfx_agent.catalogue.engines import PREFIX
from dfx_agent.catalogue.spec import by_name
from dfx_agent.node.engines.names import ENGINES, all_names

# made from the wheels' sources: every metric that their code declares
LISTS = Path(__file__).parent / "names"
# values that are no metric of their own, but a label or a field of the facts
FIELDS = {"sleep_state", "weight_load_seconds"}


def declared(engine):
    lines = (LISTS / f"{engine}.txt").read_text().splitlines()
    assert lines[0].startswith(f"# {engine} ")
    return lines[1:]


def names_of(engine):
    (found,) = [names for names in all_names() if names.engine == engine]
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_every_name_of_the_wheel_is_known(engine):
    names = names_of(engine)
    found = declared(engine)
    assert len(found) > 130
    assert [name for name in found if not names.knows(names.base(name) or "")] == []


@pytest.mark.parametrize("engine", ENGINES)
def test_every_current_name_is_in_the_wheel(engine):
    """A renamed metric shows here when the list of a newer wheel is committed."""
    only_old = {"prefix_cache_hit_ratio", "reported_tokens_per_second", "spec_accept_ratio"}
    there = {name.partition(":")[2].removesuffix("_total") for name in declared(engine)}
    latest = {
        name: mapping.metric
        for name, mappings in names_of(engine).mappings.items()
        for mapping in mappings
        if mapping.priority == 0
    }
    gone = {metric for name, metric in latest.items() if name not in there}
    assert gone <= (only_old if engine == "vllm" else set())


def test_ours_are_declared_with_the_kind_that_is_read():
    metrics = by_name()
    ours = {
        mapping.metric
        for names in all_names()
        for mappings in names.mappings.values()
        for mapping in mappings
    }
    assert [name for name in ours if PREFIX + name not in metrics] == []
    reported = {
        name.removeprefix(PREFIX) for name, m in metrics.items()
        if m.kind in {"histogram", "counter"} and name.startswith(PREFIX)
    }  # fmt: skip
    own = {"busy_seconds", "observed_seconds", "restarts", "failed_readings"}
    assert reported - ours == own


@pytest.mark.parametrize(
    ("sample", "base"),
    [
        ("vllm:num_requests_running", "num_requests_running"),
        ("vllm:num_preemptions_total", "num_preemptions"),
        ("ray_vllm_num_preemptions_total", "num_preemptions"),
        ("vllm:time_to_first_token_seconds_bucket", "time_to_first_token_seconds"),
        ("vllm:iteration_tokens_total_sum", "iteration_tokens_total"),
        ("vllm:generation_tokens_created", "generation_tokens"),
        ("vllm:cache_config_info", "cache_config_info"),
        ("vllmish", None),
        ("python_gc_objects_collected_total", None),
    ],
)
def test_names_without_prefix_and_suffix(sample, base):
    assert names_of("vllm").base(sample) == base
    if base is not None:
        assert names_of("vllm").knows(base)


def test_a_name_of_tomorrow_is_unknown():
    assert not names_of("vllm").knows("num_requests_pondering")

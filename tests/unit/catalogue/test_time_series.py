"""Scalars over steps: merged over ranks, bounded, right over restarts; against a plain model."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfx_agent.catalogue.native import time_series
from dfx_agent.catalogue.native.time_series import ScalarStore
from dfx_agent.snapshot import Moments

FLOATS = st.floats(-1e6, 1e6)


@given(st.lists(FLOATS, min_size=1), st.integers(0, 20))
def test_moments_merge_as_if_they_were_one(values, cut):
    def of(part):
        merged = Moments.of_value(part[0])
        for value in part[1:]:
            merged = merged.merge(Moments.of_value(value))
        return merged

    left, right = values[:cut], values[cut:]
    merged = of(left).merge(of(right)) if left and right else of(values)
    assert (merged.count, merged.min, merged.max) == (len(values), min(values), max(values))
    assert merged.sum == pytest.approx(math.fsum(values), abs=1e-3)
    assert merged.mean == pytest.approx(math.fsum(values) / len(values), abs=1e-3)


def test_a_name_beyond_the_bound_is_counted_and_costs_nothing(monkeypatch):
    monkeypatch.setattr(time_series, "MAX_KEYS", 2)
    store = ScalarStore()
    for number in range(5):
        store.add(f"loss/{number}", "0", 0, 1, 1.0)
    store.add("loss/0", "0", 0, 2, 2.0)
    assert store.keys() == ["loss/0", "loss/1"]
    assert (store.num_stale, store.has("loss/4")) == (3, False)
    assert store.latest("loss/0")[0] == 2


def test_ranks_are_merged_and_a_rank_replaces_its_own_value():
    store = ScalarStore()
    for rank, value in (("0", 1.0), ("1", 3.0), ("0", 5.0)):
        store.add("kl", rank, 0, 7, value)
    assert store.latest("kl") == (7, Moments(2, 8.0, 3.0, 5.0))
    assert store.history("kl") == ((7,), (4.0,))


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("012"), st.integers(-3, 3), FLOATS),
        max_size=200,
    )
)
def test_history_equals_a_plain_model(rows):
    """The model keeps all: a step counts while it is among the 8 newest, else it is stale."""
    store, model = ScalarStore(), {"a": {}, "b": {}}
    base, num_stale = {"a": 0, "b": 0}, 0
    for key, rank, delta, value in rows:
        step = base[key] + delta
        series = model[key]
        if step in series and step in sorted(series)[-8:]:
            series[step][rank] = value
        elif not series or step > max(series):
            series[step] = {rank: value}
            base[key] = step
        else:
            num_stale += 1
        store.add(key, rank, 0, step, value)
    assert store.num_stale == num_stale
    for key, series in model.items():
        if series:
            steps, means = store.history(key)
            assert list(steps) == sorted(series)
            want = [sum(series[s].values()) / len(series[s]) for s in sorted(series)]
            assert list(means) == pytest.approx(want)


def test_a_restart_takes_back_the_steps_it_repeats_and_only_those():
    store = ScalarStore()
    for step in range(1, 21):
        store.add("kl", "0", 0, step, float(step))
    store.add("kl", "0", 1, 15, 150.0)
    store.add("kl", "1", 1, 15, 250.0)
    store.add("kl", "0", 1, 16, 160.0)
    steps, means = store.history("kl")
    assert list(steps) == list(range(1, 17))
    assert list(means) == [*map(float, range(1, 15)), 200.0, 160.0]


def test_a_restart_from_far_before_the_recent_steps():
    store = ScalarStore()
    for step in range(1, 101):
        store.add("kl", "0", 0, step, float(step))
    for step in range(3, 30):
        store.add("kl", "0", 1, step, -float(step))
    steps, means = store.history("kl")
    assert list(steps) == list(range(1, 30))
    assert list(means) == [1.0, 2.0, *(-float(step) for step in range(3, 30))]


def test_values_without_a_step_are_numbered():
    store = ScalarStore()
    for value in (1.0, 2.0, 3.0):
        store.add("loss", "0", 0, None, value)
    steps, means = store.history("loss")
    assert (list(steps), list(means)) == ([0, 1, 2], [1.0, 2.0, 3.0])


def test_memory_is_bounded_and_the_newest_stay():
    store = ScalarStore()
    for step in range(12_000):
        store.add("kl", "0", 0, step, float(step))
    steps, means = store.history("kl")
    assert len(steps) == len(means) <= 5000
    assert list(steps) == list(map(int, means))
    assert steps[-1] == 11_999
    assert steps[0] == 12_000 - len(steps)


@pytest.mark.parametrize("step", [-(2**63), -1, 0, 2**63 - 1])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e308])
def test_odd_steps_and_values_are_kept_without_an_error(step, value):
    store = ScalarStore()
    store.add("kl", "0", 0, step, value)
    store.add("kl", "1", 0, step, value)
    store.add("kl", "0", 0, None, value)
    store.latest("kl")
    assert len(store.history("kl")[0]) in (1, 2)


def test_steps_after_one_with_settled_and_recent_values():
    store = ScalarStore()
    for step in range(20):
        for rank, value in (("0", step), ("1", step + 2)):
            store.add("kl", rank, 0, step, float(value))
    store.add("reward", "0", 0, 18, 0.5)
    everything = store.after(None)
    assert list(everything) == list(range(20))
    assert {step: values["kl"] for step, values in everything.items()} == {
        step: step + 1.0 for step in range(20)
    }
    assert store.after(17) == {18: {"kl": 19.0, "reward": 0.5}, 19: {"kl": 20.0}}
    assert store.after(19) == {}

"""What the guest makes of the text of a variable."""

from __future__ import annotations

import pytest

from dfx_agent.wire import variables

DEFAULTS = {
    variables.RUN: "",
    variables.RING_RECORDS: 16384,
    variables.DISABLE_HOOKS: frozenset(),
    variables.MAX_OVERHEAD: 0.005,
    variables.DEVICE_TIME: False,
}


@pytest.mark.parametrize("variable", DEFAULTS, ids=lambda variable: variable.name)
def test_absent_and_empty_are_the_default(variable, monkeypatch) -> None:
    monkeypatch.delenv(variable.name, raising=False)
    assert variable.value() == DEFAULTS[variable]
    monkeypatch.setenv(variable.name, "")
    assert variable.value() == DEFAULTS[variable]


def test_it_is_read_when_asked(monkeypatch) -> None:
    for run in ("first", "second"):
        monkeypatch.setenv("DFX_RUN", run)
        assert variables.RUN.value() == run


@pytest.mark.parametrize(
    ("text", "hooks"),
    [("all", {"all"}), ("forward, collectives", {"forward", "collectives"}), ("a.b", {"a.b"})],
)
def test_hooks_that_stay_out(text, hooks, monkeypatch) -> None:
    monkeypatch.setenv("DFX_DISABLE_HOOKS", text)
    assert variables.DISABLE_HOOKS.value() == hooks


@pytest.mark.parametrize(("text", "is_on"), [("1", True), ("0", False), ("yes", False)])
def test_device_time_is_on_with_one_alone(text, is_on, monkeypatch) -> None:
    monkeypatch.setenv("DFX_DEVICE_TIME", text)
    assert variables.DEVICE_TIME.value() is is_on


def test_a_ring_of_another_size(monkeypatch) -> None:
    monkeypatch.setenv("DFX_RING_RECORDS", "1024")
    assert variables.RING_RECORDS.value() == 1024


@pytest.mark.parametrize("text", ["1000", "-1024", "0", "1e3", "٢٥٦", "2048.0", str(2**40)])
def test_a_ring_that_cannot_be_is_said(text, monkeypatch) -> None:
    monkeypatch.setenv("DFX_RING_RECORDS", text)
    with pytest.raises(ValueError, match=r"DFX_RING_RECORDS=.*power of two"):
        variables.RING_RECORDS.value()


@pytest.mark.parametrize(
    ("text", "ratio"),
    [("0.5%", 0.005), ("0.005", 0.005), ("", None), ("much", None), ("0", None), ("200%", None)],
)
def test_a_budget_is_a_ratio_or_percent(text, ratio):
    assert variables.ratio_below_one(text) == ratio

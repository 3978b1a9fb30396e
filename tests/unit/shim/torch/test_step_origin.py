"""Whether a step number is the job's own or counts from an attach, as a reader sees it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dfx_agent.shim import recorder
from dfx_agent.shim.recorder import Recorder
from dfx_agent.shim.torch import optimizers, step_hooks
from dfx_agent.wire import Identity, SegmentReader
from dfx_agent.wire.records import FROM_ATTACH, KIND_MASK, STEP


class Optimizer:
    """With ``num_done`` steps in its own state; None for one that counts none, as SGD."""

    def __init__(self, num_done: int | None) -> None:
        self.param_groups = [{"params": [], "lr": 0.1}]
        self.state: dict[str, Any] = {"p": {}} if num_done is None else {"p": {"step": num_done}}


@pytest.fixture
def writer(dfx_dir, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    writer = Recorder(str(dfx_dir), Identity(run="r", role="trainer"))
    monkeypatch.setattr(recorder, "current", writer)
    monkeypatch.setattr(step_hooks, "seen", step_hooks._Training())
    monkeypatch.setattr(optimizers, "state", optimizers._OptimizerState())
    step_hooks.seen.has_details = False
    return writer


@pytest.mark.parametrize(
    ("is_attached", "num_done", "step", "is_from_attach"),
    [(True, None, 2, True), (True, 40, 41, False), (False, None, 2, False)],
)
def test_a_number_is_marked_that_nobody_but_the_guest_counts(
    writer, is_attached, num_done, step, is_from_attach
):
    writer.is_attached = is_attached
    step_hooks._after_step(Optimizer(num_done), is_on=True)
    assert steps(writer) == [(step, is_from_attach)]


def test_the_number_of_the_job_is_not_marked(writer):
    writer.is_attached = True
    writer.set_step(7)
    step_hooks._after_step(Optimizer(None), is_on=True)
    assert steps(writer) == [(7, False)]


def steps(writer: Recorder) -> list[tuple[int, bool]]:
    records = [SimpleNamespace(step=r[4], kind=r[8]) for r in SegmentReader(writer.path).poll()]
    return [(r.step, bool(r.kind & FROM_ATTACH)) for r in records if r.kind & KIND_MASK == STEP]

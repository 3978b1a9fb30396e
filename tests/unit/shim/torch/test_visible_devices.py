"""Variables that hide devices, as they are in this process and not as it was started."""

from __future__ import annotations

import pytest

from dfx_agent.node.segments.reported_layout import ReportedLayout
from dfx_agent.shim.torch.job_layout import VisibleDevices
from dfx_agent.wire.job_description import HIDING_VARIABLES


class Writer:
    """Takes what is said."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add_description(self, text: str) -> None:
        self.texts.append(text)

    @property
    def visible(self) -> dict[str, str | None]:
        layout = ReportedLayout()
        layout.read(self.texts)
        return {name: value for name, value in layout.visible.items() if value is not None}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in HIDING_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_a_variable_set_late_is_reported_until_the_accelerator_read_it(environment):
    reporter, writer = VisibleDevices(), Writer()
    environment.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    reporter.report(writer, is_used=False)
    environment.setenv("CUDA_VISIBLE_DEVICES", "1")
    reporter.report(writer, is_used=True)
    assert writer.visible == {"CUDA_VISIBLE_DEVICES": "1"}
    environment.setenv("CUDA_VISIBLE_DEVICES", "7")
    reporter.report(writer, is_used=True)
    assert writer.visible == {"CUDA_VISIBLE_DEVICES": "1"}


def test_a_process_without_devices_says_nothing(environment):
    reporter, writer = VisibleDevices(), Writer()
    reporter.report(writer, is_used=False)
    assert writer.texts == []
    reporter.report(writer, is_used=True)
    assert len(writer.texts) == len(HIDING_VARIABLES), (
        "that none is set, whatever it was started with"
    )


def test_each_is_written_once_and_to_the_segment_of_a_child_too(environment):
    reporter, first, of_child = VisibleDevices(), Writer(), Writer()
    environment.setenv("ASCEND_RT_VISIBLE_DEVICES", "6")
    for _ in range(3):
        reporter.report(first, is_used=False)
    assert len(first.texts) == len(HIDING_VARIABLES)
    reporter.report(of_child, is_used=True)
    assert of_child.visible == {"ASCEND_RT_VISIBLE_DEVICES": "6"}

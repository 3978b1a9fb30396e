"""What the guest's thread says of the layout, and how often."""

from __future__ import annotations

import sys
import types

import pytest

from dfx_agent.node.segments.reported_layout import ReportedLayout
from dfx_agent.shim.recorder import Recorder
from dfx_agent.shim.torch import collectives
from dfx_agent.shim.torch.job_layout import LayoutReporter
from dfx_agent.wire import Identity, SegmentReader, job_description
from dfx_agent.wire.records import PEER


class Torch:
    """As much of torch.distributed as is asked."""

    def __init__(self) -> None:
        self.ranks: dict[str, list[int]] = {}

    def get_process_group_ranks(self, group) -> list[int]:
        return self.ranks[group.group_name]


class ProcessGroup:
    def __init__(self, name: str) -> None:
        self.group_name = name
        self.group_desc = f"about {name}"


@pytest.fixture
def torch(monkeypatch) -> Torch:
    fake = Torch()
    monkeypatch.setitem(sys.modules, "torch.distributed", fake)
    monkeypatch.setattr(collectives, "_groups", {})
    return fake


@pytest.fixture
def writer(dfx_dir) -> Recorder:
    return Recorder(str(dfx_dir), Identity(run="r", role="trainer", host="h"))


def group(torch: Torch, name: str, ranks: list[int]) -> ProcessGroup:
    made = ProcessGroup(name)
    torch.ranks[name] = ranks
    collectives._groups[id(made)] = collectives.TrackedGroup(made, name)
    return made


def read(writer: Recorder) -> tuple[ReportedLayout, int]:
    """What was told, and in how many texts."""
    reader = SegmentReader(writer.path)
    texts = [text for text in reader.texts(0) if text.startswith(job_description.MARK)]
    reader.close()
    layout = ReportedLayout()
    layout.read(texts)
    return layout, len(texts)


def test_groups_and_peers_are_written_once_and_after_a_change(torch, writer):
    reporter, made = LayoutReporter(), group(torch, "7", [4, 6])
    known = collectives._groups[id(made)]
    for _ in range(3):
        reporter.report(writer)
    layout, num_texts = read(writer)
    assert (layout.groups["7"].description, num_texts) == ("about 7", 1)
    assert (known.peer(1), known.peer(1), known.peer(5)) == (PEER - 6, PEER - 6, -1)
    reporter.report(writer)
    assert read(writer)[0].peers == (6,)
    assert read(writer)[1] == 2


def test_another_segment_hears_all_of_it(torch, writer, dfx_dir):
    reporter, _made = LayoutReporter(), group(torch, "7", [4, 6])
    reporter.report(writer)
    other = Recorder(str(dfx_dir), Identity(run="r"))
    reporter.report(other)
    assert read(other)[0].groups.keys() == {"7"}


def test_a_table_without_room_is_said_and_never_outgrown(torch, writer):
    reporter = LayoutReporter()
    made = [group(torch, f"{n}", [m * m + n for m in range(100)]) for n in range(200)]
    reporter.report(writer)
    layout, _ = read(writer)
    assert 0 < len(layout.groups) < len(made)
    assert len(layout.groups) + layout.num_untold == len(made)
    assert reporter._num_bytes <= job_description.MAX_BYTES


def test_places_of_megatron_are_those_that_it_has(torch, writer, monkeypatch):
    state = types.ModuleType("megatron.core.parallel_state")
    state.get_pipeline_model_parallel_rank = lambda: 2
    state.get_pipeline_model_parallel_world_size = lambda: 4
    state.get_data_parallel_rank = lambda: 1 / 0
    state.get_tensor_model_parallel_rank = lambda: None
    monkeypatch.setitem(sys.modules, state.__name__, state)
    LayoutReporter().report(writer)
    assert read(writer)[0].places == {"pipeline": (2, 4)}


def test_a_group_that_torch_does_not_list_is_left_out(torch, writer):
    made = group(torch, "7", [4, 6])
    torch.ranks.clear()
    LayoutReporter().report(writer)
    assert collectives._groups[id(made)].peer(0) == -1
    assert read(writer)[1] == 0

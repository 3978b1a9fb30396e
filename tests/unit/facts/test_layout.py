"""Members of process groups as strides, from whoever told them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.facts.layout import ProcessGroup
from dfx_agent.wire.job_description import RankRange

numbers = st.integers(-50, 200)


@given(numbers, numbers, st.integers(1, 9))
def test_a_stride_has_what_it_counts(first, last, step):
    stride = RankRange(first, last, step)
    assert stride.num_ranks == sum(map(stride.has, range(-60, 210)))


@pytest.mark.parametrize(
    "stride", [RankRange(0, 10**30, 0), RankRange(5, 1, 1), RankRange(0, 3, -2)]
)
def test_a_strange_stride_neither_raises_nor_takes_long(stride):
    assert stride.num_ranks >= 0
    assert not stride.has(-1)


def test_a_group_is_complete_when_all_members_are_reported():
    group = ProcessGroup("tp", "tensor", 4, (RankRange(0, 2, 2), RankRange(5, 6, 1)))
    assert group.is_whole
    assert [rank for rank in range(8) if group.has(rank)] == [0, 2, 5, 6]
    assert not ProcessGroup("tp", "tensor", 5, group.members).is_whole

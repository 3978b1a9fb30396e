"""What is said of the parts of a framework that the guest has hooks in."""

from __future__ import annotations

import pytest
from prometheus_page import SPLIT, exporter, rank_row, samples


@pytest.mark.parametrize(
    ("gauges", "last", "active", "silent"),
    [
        ({}, None, 0.0, []),  # no step is over: nothing had to come yet
        ({}, SPLIT, 0.0, [1.0]),
        ({"delivered/verl/tracking/0.9.1": 1.0}, SPLIT, 1.0, []),
    ],
)
def test_a_part_is_active_once_it_has_delivered(gauges, last, active, silent):
    row = rank_row(last=last, gauges={"adapter/verl/tracking/0.9.1": 1.0, **gauges})
    found = samples(exporter(row))
    assert [value for _, value in found["dfx_adapter_active"]] == [active]
    assert [value for _, value in found.get("dfx_adapter_silent", ())] == silent
    assert "dfx_native_metric" not in found


def test_a_part_that_delivers_in_one_process_is_silent_in_none():
    """One rank alone logs; a driver calls no method of its workers."""
    part = {"adapter/verl/methods/0.9.1": 1.0}
    driver = rank_row(role="driver", last=SPLIT, gauges=part)
    worker = rank_row(last=SPLIT, gauges={**part, "delivered/verl/methods/0.9.1": 1.0})
    found = samples(exporter(driver, worker))
    assert sorted(value for _, value in found["dfx_adapter_active"]) == [0.0, 1.0]
    assert "dfx_adapter_silent" not in found

"""A family that moved is named only while it is true."""

from __future__ import annotations

import pytest
from kept_json import through_json

from dfx_agent.judge.divergence.symptoms import ACTIVE_STEPS, FAR_Z, Symptom


def active(name: str, zs: list[float], alarm_row: int = 0) -> list[bool]:
    """Of each row, after an alarm at ``alarm_row``."""
    symptom, found = Symptom(name, "up"), []
    for row, z in enumerate(zs):
        if row == alarm_row:
            symptom.alarm(row, row)
        symptom.observe(row, z)
        found.append(symptom.is_active(row))
    return found


@pytest.mark.parametrize(
    ("name", "zs", "expected"),
    [
        ("entropy", [3.0, 3.0, 0.5, 0.5], [True, True, False, False]),
        ("entropy", [3.0, 0.5, 1.0, 0.5], [True, False, True, False]),
        ("entropy", [FAR_Z, 0.5, -3.0], [True, False, False]),
        ("entropy", [FAR_Z, FAR_Z, 0.5, -3.0, 0.5], [True] * 5),
        ("reward", [FAR_Z, FAR_Z, 0.5, -3.0, 0.5], [True, True, True, False, False]),
    ],
)
def test_a_small_move_ends_with_its_signals_and_a_far_one_lasts(name, zs, expected):
    assert active(name, zs) == expected


def test_no_move_lasts_longer_than_ten_rows_after_its_alarm():
    assert active("entropy", [9.0] * 12) == [True] * ACTIVE_STEPS + [False] * 2


def test_a_row_that_reports_nothing_ends_nothing():
    symptom = Symptom("entropy", "up")
    symptom.alarm(0, 0)
    symptom.observe(0, 3.0)
    assert symptom.is_active(1)


def test_one_that_a_page_holds_stays():
    symptom = Symptom("reward", "down")
    symptom.alarm(0, 0)
    symptom.observe(0, 3.0)
    symptom.hold(0)
    symptom.observe(1, -9.0)
    assert symptom.is_active(1)
    other = Symptom("reward", "down")
    other.resume(through_json(symptom.save()))
    assert other.save() == symptom.save()
    symptom.release()
    assert not symptom.is_active(1)

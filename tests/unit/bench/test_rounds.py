"""on / off and A/A of rounds whose answer is known."""

import pytest

from bench.rounds import Rounds, ratios


def rounds(on: float, off: float, again: float, num_rounds: int = 8) -> Rounds:
    arms = {"on": on, "reduced": on, "off": off, "again": again}
    one = {arm: {"wall_seconds": value, "cpu_seconds": value / 2} for arm, value in arms.items()}
    return [one] * num_rounds


def test_ranks_are_summed_before_the_ratio_is_taken() -> None:
    wall, _, same, cpu, _, _ = ratios("job", [rounds(0.3, 0.1, 0.1), rounds(0.1, 0.1, 0.1)])
    assert wall.value == pytest.approx(2.0)
    assert cpu.value == pytest.approx(2.0)
    assert same.value == pytest.approx(1.0)
    assert "100 ms wall per rank" in wall.note


def test_off_is_the_mean_of_both_off_arms() -> None:
    wall, _, same, *_ = ratios("job", [rounds(0.2, 0.1, 0.4)])
    assert wall.value == pytest.approx(1.0)
    assert same.value == pytest.approx(4.0)


def test_the_bar_looks_at_the_upper_end_of_the_interval() -> None:
    mixed = rounds(1.0, 1.0, 1.0, 6) + rounds(1.06, 1.0, 1.0, 1)
    wall, *_ = ratios("job", [mixed])
    assert wall.value < 1.01
    assert wall.bar is not None
    assert wall.spread["high"] > 1.01
    assert not wall.bar.is_met(wall.value)
    slower, *_ = ratios("job", [rounds(1.02, 1.0, 1.0)])
    assert slower.note.startswith("95 % interval, distinguishable from A/A")

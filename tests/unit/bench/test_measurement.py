"""What a measured number says about its bar and its baseline."""

from bench.measurement import Bar, Baseline, Result, of_samples, table

MACHINE = {"cpu": "abacus"}


def test_row_has_the_ratio_to_the_baseline_and_the_verdict() -> None:
    result = of_samples("scrape", [30.0, 40.0, 50.0], "ms", baseline=Baseline("b", 80.0))
    row = result.as_row(MACHINE)
    assert (row["value"], row["ratio"], row["n"]) == (40.0, 0.5, 3)
    assert (row["p10"], row["p90"]) == (32.0, 48.0)
    assert row["machine"] == MACHINE
    assert row["bar"] is None
    assert row["met"] is None


def test_a_cost_meets_its_bar_at_the_limit_and_not_above() -> None:
    assert Bar(1.0).is_met(1.0)
    assert not Bar(1.0).is_met(1.001)


def test_a_rate_meets_its_bar_from_the_limit_on() -> None:
    assert Bar(1e6, at_least=True).is_met(1e6)
    assert not Bar(1e6, at_least=True).is_met(999_999.0)


def test_an_interval_is_judged_by_its_bound_not_by_its_middle() -> None:
    spread = {"low": 0.99, "high": 1.02}
    result = Result("on / off", 1.0, "x", 9, spread, bar=Bar(1.01, bound=1.02))
    assert result.as_row(MACHINE)["met"] is False


def test_table_says_met_and_missed() -> None:
    rows = [
        of_samples("good", [0.5], "us", bar=Bar(1.0)).as_row(MACHINE),
        of_samples("bad", [2.0], "us", bar=Bar(1.0)).as_row(MACHINE),
        of_samples("plain", [2.0], "us").as_row(MACHINE),
    ]
    _, good, bad, plain = table(rows).splitlines()
    assert good.startswith("good ")
    assert good.endswith("met")
    assert bad.endswith("MISSED")
    assert "met" not in plain
    assert "MISSED" not in plain

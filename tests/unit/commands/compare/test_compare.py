"""Which run is slower, in which stage, and what differs; with few steps nothing is claimed."""

import json
from itertools import pairwise

import pytest
from stored_scene import step_row, steps, store

from dfx_agent.commands import main
from dfx_agent.commands.compare.comparison import IDLE, main_role, step_parts
from dfx_agent.commands.compare.medians import median_interval, ratio_interval
from dfx_agent.exporters.history.run_file import Fact


@pytest.fixture
def compare(tmp_path, capsys):
    """The exit code and the text of `dfx-agent compare a b`."""

    def run(a, b, *options):
        files = [store(tmp_path / name, name, **given) for name, given in (("a", a), ("b", b))]
        code = main(["compare", *files, *options])
        return code, capsys.readouterr().out

    return run


def test_the_slower_stage_is_named_with_its_share(compare):
    code, text = compare({"rows": steps(1.0)}, {"rows": steps(1.3)})
    assert code == 0
    first = text.splitlines()[0]
    assert first.startswith("b is slower than a by 19.8 % [19.1, 21.0]")
    assert "101 % of it is rollout (0.013 instead of 0.01 s per token)" in first


def test_the_only_version_that_differs_is_named(compare):
    old, new = (Fact("package", "", "vllm", version) for version in ("0.17", "0.18"))
    same = Fact("package", "", "torch", "2.9")
    _, text = compare(
        {"rows": steps(1.0), "facts": [old, same]}, {"rows": steps(1.3), "facts": [new, same]}
    )
    assert text.splitlines()[0].endswith("vllm 0.17 → 0.18 is the only version that differs.")
    assert "torch" not in text


def test_settings_that_differ_are_named(compare):
    facts = [[Fact("config", "", "--lr", value)] for value in ("0.1", "0.2")]
    _, text = compare(
        {"rows": steps(1.3), "facts": facts[0]}, {"rows": steps(1.0), "facts": facts[1]}
    )
    assert "b is faster than a by" in text
    assert "settings that differ: --lr 0.1 → 0.2" in text


def test_more_tokens_are_not_slower(compare):
    rows = [steps(1.0, 0.5, tokens=100.0), steps(2.0, 1.0, tokens=200.0)]
    code, text = compare({"rows": rows[0]}, {"rows": rows[1]}, "--fail-over", "5%")
    assert code == 0
    assert "No difference is certain" in text


def test_without_tokens_steps_are_compared_as_they_are(compare):
    rows = [steps(1.0, 0.5, tokens=None), steps(2.0, 1.0, tokens=None)]
    _, text = compare({"rows": rows[0]}, {"rows": rows[1]})
    assert "b is slower than a by 100.0 %" in text
    assert "instead of 1 s)" in text


def test_equal_runs_differ_in_nothing(compare):
    code, text = compare({"rows": steps()}, {"rows": steps()}, "--fail-over", "0")
    assert code == 0
    assert "No difference is certain" in text
    assert "No setting, package, device or host fact differs." in text


@pytest.mark.parametrize(
    ("limit", "code"), [("5%", 1), ("19", 1), ("25%", 0), ("x", 2), ("-1%", 2)]
)
def test_fail_over_decides_the_exit_code(compare, limit, code):
    given = {"rows": steps(1.0)}, {"rows": steps(1.3)}
    assert compare(*given, f"--fail-over={limit}")[0] == code


def test_a_difference_that_may_be_noise_never_fails(compare):
    def noisy(factor):
        seconds = [1.0, 1.9, 1.2, 1.7, 0.8, 1.5, 1.1, 2.0, 0.9, 1.6, 1.3, 1.8, 1.0, 1.4, 1.2]
        return [step_row(n, {"rollout": s * factor}) for n, s in enumerate(seconds)]

    code, text = compare({"rows": noisy(1.0)}, {"rows": noisy(1.08)}, "--fail-over", "5%")
    assert code == 0
    assert text.startswith("No difference is certain: b takes +8.0 % [-")


def test_a_faster_run_never_fails(compare):
    assert compare({"rows": steps(1.3)}, {"rows": steps(1.0)}, "--fail-over", "0")[0] == 0


def test_another_world_size_is_not_comparable(compare):
    code, text = compare({"rows": steps(), "world_size": 16}, {"rows": steps(), "world_size": 32})
    assert code == 2
    assert text.startswith("not comparable: world size 16 and 32.")


def test_another_number_of_ranks_is_not_comparable(compare):
    code, text = compare(
        {"rows": steps(), "world_size": None}, {"rows": steps(num_ranks=1), "world_size": None}
    )
    assert code == 2
    assert text.startswith("not comparable: role trainer has 2 and 1 ranks.")


def test_too_few_steps_are_said(compare):
    code, text = compare({"rows": steps()}, {"rows": steps(number=12)})
    assert code == 2
    assert "too few steps: role trainer of b has 9 steps after warm-up, 10 are needed" in text


def test_json_has_every_stage(compare):
    _, text = compare({"rows": steps(1.0)}, {"rows": steps(1.3)}, "--json")
    found = json.loads(text)
    assert found["role"] == "trainer"
    assert found["parts"][0]["part"] == "rollout"
    assert found["ratio"]["low"] < found["ratio"]["value"] < found["ratio"]["high"]


def test_an_unknown_run_names_the_runs_that_there_are(tmp_path, capsys):
    store(tmp_path / "h", "nightly", rows=steps())
    code = main(["compare", "nightly", "x", "--history-directory", str(tmp_path / "h")])
    assert code == 2
    assert "no stored run x" in capsys.readouterr().err


def test_a_median_has_the_interval_of_its_order_statistics():
    found = median_interval([float(n) for n in range(1, 101)])
    assert (found.value, found.low, found.high) == (50.5, 40.0, 61.0)
    assert median_interval([3.0]).low == 3.0


def test_more_steps_make_an_interval_narrower():
    widths = []
    for number in (20, 80, 320):
        values = [row.cells[0].split.wall_seconds for row in steps(number=number)]
        found = ratio_interval(values, values)
        widths.append(found.high - found.low)
    assert all(later <= earlier for earlier, later in pairwise(widths))


def test_waits_are_parts_and_the_first_steps_are_left_out():
    rows = [step_row(n, {"rollout": 1.0}, waits={"queue": {"": 0.5, "x": 0.25}}) for n in range(5)]
    first, *others = step_parts(rows, "trainer")
    assert (first.step, len(others)) == (3, 1)
    assert first.seconds == {"rollout": 1.0, "waiting: queue": 0.75, IDLE: 0.0}


def test_a_step_that_a_rank_did_not_finish_does_not_count():
    rows = [step_row(n, {"rollout": 1.0}) for n in range(5)]
    incomplete = [*rows[:-1], type(rows[-1])(4, "trainer", 1.0, 2.0, ("1",), None, rows[-1].cells)]
    assert [step.step for step in step_parts(incomplete, "trainer")] == [3]
    assert main_role(rows) == "trainer"
    assert main_role([]) is None

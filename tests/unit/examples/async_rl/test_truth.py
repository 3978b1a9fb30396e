"""What is written of faults: components, amounts in a step, first step; and nothing half."""

import json

import pytest

from examples.async_rl import faults, truth


def described(spec, lines):
    return truth.merged(faults.parse([spec]), lines)["faults"][0]


def written(folder, process, write):
    write(truth.TruthLog(folder, process))
    return truth.read(folder)


def test_amounts_of_one_step_add_up_and_its_mean_is_over_whole_steps(tmp_path):
    (fault,) = faults.parse(["slow_tool:0.5:3"])

    def write(log):
        for step, calls in ((3, 2), (4, 4), (5, 1)):
            for _ in range(calls):
                log.injected(fault, step, 0.5)

    found = described("slow_tool:0.5:3", written(tmp_path, "orchestrator", write))

    assert found == {
        "kind": "slow_tool",
        "component": "tool calculator",
        "start_step": 3,
        "unit": "seconds",
        "per_step": 1.5,  # step 5 may be cut short
        "amount_by_step": {3: 1.0, 4: 2.0, 5: 0.5},
        "events_by_step": {3: 2, 4: 4, 5: 1},
    }


def test_a_step_without_it_counts_in_the_mean(tmp_path):
    (fault,) = faults.parse(["blocked_loop:1:3"])

    def write(log):
        for step in (3, 5, 6):
            log.injected(fault, step, 1.0)

    found = described("blocked_loop:1:3", written(tmp_path, "orchestrator", write))

    assert found["per_step"] == pytest.approx(2 / 3)


def test_a_fault_that_never_came_has_no_amount():
    found = described("slow_replica:1:3", [])

    assert found["per_step"] is None
    assert found["component"] == "rollout replica 1"


def test_a_starved_learner_waits_longer_than_it_did_before(tmp_path):
    def write(log):
        for step, seconds in enumerate((9.0, 8.0, 0.1, 0.3, 0.2, 2.2, 4.2, 1.0), 1):
            log.measured(step, {truth.WAIT_FOR_SAMPLES: seconds})

    found = described("starved_learner:5", written(tmp_path, "trainer 0", write))

    assert found["amount_by_step"] == pytest.approx({6: 2.0, 7: 4.0, 8: 0.8})
    assert found["per_step"] == pytest.approx(3.0)


def test_what_was_measured_is_by_process_and_step(tmp_path):
    truth.TruthLog(tmp_path, "trainer 0").measured(1, {"a_seconds": 1.0})
    truth.TruthLog(tmp_path, "trainer 1").measured(1, {"a_seconds": 2.0})

    measured = truth.merged((), truth.read(tmp_path))["measured"]

    assert measured == {"trainer 0": {1: {"a_seconds": 1.0}}, "trainer 1": {1: {"a_seconds": 2.0}}}


def test_a_line_that_is_being_written_is_left_out(tmp_path):
    log = truth.TruthLog(tmp_path, "orchestrator")
    log.measured(1, {"a_seconds": 1.0})
    with (tmp_path / "orchestrator.jsonl").open("a") as file:
        file.write('{"process": "orchestr')

    assert [line["step"] for line in truth.read(tmp_path)] == [1]


def test_the_file_is_json_and_leaves_no_other_file(tmp_path):
    folder, path = tmp_path / "lines", tmp_path / "truth.json"
    folder.mkdir()

    truth.write(path, faults.parse(["leak:4"]), folder)

    assert json.loads(path.read_text())["faults"][0]["unit"] == "mebibytes"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lines", "truth.json"]


def test_without_a_folder_nothing_is_written():
    truth.TruthLog(None, "trainer 0").measured(1, {"a_seconds": 1.0})

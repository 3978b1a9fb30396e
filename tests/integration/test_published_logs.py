"""A folder of logs as people publish them: each is judged from what it holds, or said not to be."""

import json
from pathlib import Path

import pytest
from published_logs import NUM_ROWS, ONSET_ROW, write_all

ALL = {"divergence", "grad_norm", "entropy", "reward", "length"}
# file -> families of signals that it holds
HELD = {
    "trl_bars.log": ALL,
    "trl_ranks.out": ALL,
    "trl_powershell.log": ALL,
    "swift.log": ALL,
    "notebook.ipynb": ALL - {"grad_norm"},
    "wandb_export.csv": ALL,
    "wandb_history.jsonl": ALL,
    "semicolons.csv": ALL,
    "verl_colour.log": ALL,
    "cut.jsonl.gz": ALL,
    "prime_rl.log": ALL,
    "prime_rl_orchestrator.log": {"reward", "length"},
    "roll.log": ALL,
    "openrlhf.log": {"divergence", "reward", "length"},
    "swanlab.csv": ALL,
    "mlflow.csv": ALL,
    "own_names.jsonl": {"reward", "length"},
}
# how each counts its steps at the first row of the collapse
FIRST_STEP = {"swift.log": 61, "notebook.ipynb": 61}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    write_all(folder)
    return folder


@pytest.fixture(scope="module")
def result(folder, run_cli):
    done = run_cli("backtest", "--json", str(folder))
    assert done.returncode == 1, "some of them cannot be judged"
    return json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def run_of(result):
    return {Path(run["file"]).name: run for run in result[0]["runs"]}


@pytest.mark.parametrize("name", HELD)
def test_each_form_is_read_whole_and_its_collapse_found(run_of, name):
    run = run_of[name]
    assert ALL - set(run["missing_families"]) == HELD[name]
    assert run["rows"] == NUM_ROWS or (name == "cut.jsonl.gz" and run["rows"] > ONSET_ROW)
    assert run["rows_judged"] == run["rows"] - 5
    (page,) = [alert for alert in run["alerts"] if alert["severity"] == "critical"]
    assert 0 <= page["row"] - ONSET_ROW <= 3
    assert page["step"] - page["row"] == FIRST_STEP.get(name, ONSET_ROW) - ONSET_ROW
    assert set(page["symptoms"]) == HELD[name]


def test_a_truncated_file_and_other_ranks_are_reported(run_of):
    assert any("is cut off or damaged" in line for line in run_of["cut.jsonl.gz"]["warnings"])
    assert any("another process" in line for line in run_of["trl_ranks.out"]["warnings"])


@pytest.mark.parametrize("name", ["wandb_one_chart.csv", "loss_and_reward.jsonl"])
def test_one_voting_family_cannot_agree_but_is_judged_by_its_size(run_of, name):
    run = run_of[name]
    assert run["missing_families"] == ["divergence", "grad_norm", "entropy", "length"]
    assert run["rows_judged"] > 0
    assert not run["can_page_by_vote"]


def test_two_families_that_cannot_page_are_never_a_plain_no_page(folder, run_cli):
    done = run_cli("backtest", str(folder / "two_of_five.jsonl"))
    assert done.returncode == 0
    (line, *_) = done.stdout.splitlines()
    assert "divergence, entropy cannot page by vote: only one signal's collapse would have" in line


def test_what_is_passed_over_is_named(result, run_of, folder):
    passed = {Path(item["file"]).name: item["reason"]
              for item in result[0]["summary"]["passed_over"]}  # fmt: skip
    assert passed.keys() == {"headerless.csv", "noise.log"}
    assert "--map" in passed["headerless.csv"]
    assert {path.name for path in folder.iterdir()} == passed.keys() | run_of.keys()


def test_own_names_are_read_by_meaning(run_of):
    run = run_of["own_names.jsonl"]
    assert run["rows_judged"] == NUM_ROWS - 5
    assert {name: reported["keys"] for name, reported in run["signals"].items()} == {
        "reward": ["score"], "response_length": ["gen_len"],
    }  # fmt: skip
    (line,) = [line for line in run["warnings"] if line.startswith("Read by meaning: ")]
    assert "--map reward=score" in line
    assert any(alert["severity"] == "critical" for alert in run["alerts"])


def test_own_names_and_columns_are_judged_by_a_map(folder, run_cli):
    own = "reward=score", "response_length=gen_len", "step=it"
    columns = "reward=2", "response_length=3", "step=1"
    for name, words in (("own_names.jsonl", own), ("headerless.csv", columns)):
        maps = [f"--map={word}" for word in words]
        done = run_cli("backtest", "--json", *maps, str(folder / name))
        (run,) = json.loads(done.stdout)["runs"]
        assert (done.returncode, run["rows_judged"]) == (0, NUM_ROWS - 5), done.stderr
        assert any(alert["severity"] == "critical" for alert in run["alerts"])

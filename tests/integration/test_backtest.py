"""``dfx-agent backtest`` over files of every format, made here and real."""

import csv
import gzip
import json
import os
import random
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REAL_RUNS = ROOT / "tests" / "data"
DATA = Path(os.environ.get("DFX_BENCH_DATA", REAL_RUNS))

NUM_STEPS, ONSET = 150, 120


def steps(*, collapse: bool) -> list[dict[str, float]]:
    """A verl run; at ``ONSET`` responses become a few words and the reward falls."""
    rng = random.Random(3)
    rows = []
    for step in range(1, NUM_STEPS + 1):
        is_bad = collapse and step >= ONSET
        rows.append(
            {
                "step": step,
                "actor/ppo_kl": rng.gauss(0, 1e-4),
                "actor/grad_norm": 0.4 * rng.lognormvariate(0, 0.15),
                "actor/entropy": 0.3 * rng.lognormvariate(0, 0.08),
                "critic/score/mean": rng.gauss(0.1 if is_bad else 0.6, 0.03),
                "critic/score/max": 1.0,
                "critic/score/min": 0.0,
                "response_length/mean": (15 if is_bad else 800) * rng.lognormvariate(0, 0.06),
                "response_length/clip_ratio": 0.0,
                "actor/pg_loss": rng.gauss(0, 0.01),
            }
        )
    return rows


def as_csv(path: Path, rows: list[dict[str, float]]) -> Path:
    with gzip.open(path, "wt", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def as_console(path: Path, rows: list[dict[str, float]]) -> Path:
    lines = []
    for row in rows:
        values = [f"{key}:np.float64({value!r})" for key, value in row.items() if key != "step"]
        lines.append(f"(TaskRunner pid=7) step:{row['step']} - " + " - ".join(values))
    path.write_text("\n".join(lines))
    return path


def as_jsonl(path: Path, rows: list[dict[str, float]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return as_csv(tmp_path / "bad.csv.gz", steps(collapse=True))


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return as_csv(tmp_path / "good.csv.gz", steps(collapse=False))


@pytest.mark.smoke
def test_json_says_when_it_would_have_paged(run_cli, bad: Path, good: Path):
    done = run_cli("backtest", "--json", str(bad), str(good))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(result) == {"runs", "summary"}
    first, second = result["runs"]
    assert {k: first[k] for k in ("file", "framework", "rows", "warnings")} == {
        "file": str(bad), "framework": "verl", "rows": NUM_STEPS, "warnings": [],
    }  # fmt: skip
    (page,) = [alert for alert in first["alerts"] if alert["severity"] == "critical"]
    assert page["alert"] == "DfxTrainingDivergence"
    assert ONSET <= page["step"] <= ONSET + 5
    assert page["row"] == page["step"] - 1
    assert set(page["symptoms"]) == {"reward", "length"}
    assert all(ONSET - 2 <= onset <= ONSET + 1 for onset in page["symptoms"].values())
    assert second["alerts"] == []
    assert result["summary"]["num_pages"] == 1
    assert result["summary"]["pages_per_100_rows"] == pytest.approx(100 / (2 * NUM_STEPS))


def test_every_format_gives_the_same_alerts(run_cli, tmp_path: Path, bad: Path):
    rows = steps(collapse=True)
    files = [
        bad,
        as_console(tmp_path / "train.log", rows),
        as_jsonl(tmp_path / "metrics.jsonl", rows),
    ]
    runs = json.loads(run_cli("backtest", "--json", *map(str, files)).stdout)["runs"]
    assert len(runs[0]["alerts"]) > 0
    assert runs[0]["alerts"] == runs[1]["alerts"] == runs[2]["alerts"]
    assert {run["framework"] for run in runs} == {"verl"}


def test_the_table_names_the_step_and_the_symptoms(run_cli, bad: Path, good: Path):
    lines = run_cli("backtest", str(bad), str(good)).stdout.splitlines()
    assert "would have paged at step 12" in lines[0]
    assert "critical step 12" in lines[1]
    assert re.search(
        r"diverging since step 12\d.*: reward fell from \S+ to \S+ \(since step 12\d\)", lines[2]
    )
    assert re.search(r"Roll back to the latest checkpoint before step 12\d, then .*#dfx", lines[3])
    assert lines[-2].endswith("no page")
    assert lines[-1].startswith("2 runs, 300 rows: 1 page (0.333 per 100) in 1 run,")


@pytest.mark.parametrize(
    ("name", "severity", "code"),
    [
        ("bad", "critical", 1),
        ("bad", "warning", 1),
        ("good", "critical", 0),
        ("good", "warning", 0),
    ],
)
def test_fail_on(run_cli, request: pytest.FixtureRequest, name, severity, code):
    path = request.getfixturevalue(name)
    assert run_cli("backtest", "--fail-on", severity, str(path)).returncode == code


CALM = {"divergence_families": 6, "divergence_families_with_reward": 6, "reward_fall_steps": 9999}


def test_thresholds_of_the_settings_are_those_of_the_agent(run_cli, tmp_path: Path, bad: Path):
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps({"thresholds": CALM, "listen": ":9000"}))
    done = run_cli("backtest", "--json", "--config", str(file), str(bad))
    result = json.loads(done.stdout)
    severities = {alert["severity"] for alert in result["runs"][0]["alerts"]}
    assert "critical" not in severities
    assert "warning" in severities
    assert result["summary"]["thresholds"] == CALM
    reported = run_cli("backtest", "--config", str(file), str(bad)).stdout
    assert reported.splitlines()[-1].endswith("; 3 thresholds of yours")


def test_the_environment_and_the_file_of_this_folder_count_as_well(run_cli, tmp_path: Path, bad):
    def num_pages(**environment: str) -> int:
        env = {**os.environ, **environment}
        done = run_cli("backtest", "--json", str(bad), cwd=tmp_path, env=env)
        return json.loads(done.stdout)["summary"]["num_pages"]

    assert num_pages() == 1
    given = ",".join(f"{key}={value}" for key, value in CALM.items())
    assert num_pages(DFX_THRESHOLDS=given) == 0
    (tmp_path / "dfx.yaml").write_text(json.dumps({"thresholds": CALM}))
    assert num_pages() == 0


def test_an_unknown_threshold_is_one_line(run_cli, tmp_path: Path, bad: Path):
    file = tmp_path / "mine.yaml"
    file.write_text("thresholds: {divergence_family: 2}")
    done = run_cli("backtest", "--config", str(file), str(bad))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "unknown threshold 'divergence_family': nearest are divergence_families" in done.stderr


def test_a_file_that_cannot_be_read_does_not_cost_the_others(run_cli, bad: Path):
    done = run_cli("backtest", "--json", str(bad.with_name("gone.csv")), str(bad))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("dfx-agent: cannot read ")
    runs = json.loads(done.stdout)["runs"]
    assert [run["rows"] for run in runs] == [0, NUM_STEPS]


def test_wrong_use_is_exit_code_2(run_cli):
    assert run_cli("backtest").returncode == 2
    assert run_cli("backtest", "--format", "xml", "x").returncode == 2


@pytest.fixture(scope="module")
def inventory() -> list[dict[str, str]]:
    with (DATA / "INVENTORY.csv").open() as file:
        return list(csv.DictReader(file))


def test_real_runs_page_where_a_reader_saw_the_collapse_and_nowhere_else(
    run_cli, inventory: list[dict[str, str]]
):
    wanted = [row for row in inventory if row["verdict"] in {"HEALTHY", "BAD"}]
    files = [str(DATA / "runs" / f"{row['name']}.csv.gz") for row in wanted]
    done = run_cli("backtest", "--json", *files, timeout_seconds=240)
    assert done.returncode == 0, done.stderr
    for row, run in zip(wanted, json.loads(done.stdout)["runs"], strict=True):
        pages = [alert for alert in run["alerts"] if alert["severity"] == "critical"]
        if row["verdict"] == "HEALTHY":
            assert pages == [], row["name"]
        else:
            (page,) = pages
            assert 0 <= page["row"] - int(row["onset_row"]) <= 5, row["name"]


def test_the_console_log_of_a_real_run_gives_what_its_table_gives(run_cli):
    name = "verl_opd_gjvwlq13"
    files = [REAL_RUNS / "logs" / f"{name}.console.log.gz", REAL_RUNS / "runs" / f"{name}.csv.gz"]
    done = run_cli("backtest", "--json", *map(str, files))
    console, table = json.loads(done.stdout)["runs"]
    assert console["rows"] == table["rows"]
    assert console["alerts"] == table["alerts"]


# ------------------------------------------------------------------------- what could be judged


def test_a_run_says_from_which_keys_and_how_many_rows_it_was_judged(run_cli, bad: Path):
    (run,) = json.loads(run_cli("backtest", "--json", str(bad)).stdout)["runs"]
    assert run["signals"]["reward"] == {"keys": ["critic/score/mean"], "rows": NUM_STEPS}
    assert 100 < run["rows_judged"] < NUM_STEPS
    assert run["missing_families"] == []
    (line, *_) = run_cli("backtest", str(bad)).stdout.splitlines()
    assert f"{run['rows_judged']} judged by policy_kl (actor/ppo_kl), " in line


def test_each_row_with_a_page_is_in_one_episode(run_cli, bad: Path):
    (run,) = json.loads(run_cli("backtest", "--json", str(bad)).stdout)["runs"]
    pages = [alert for alert in run["alerts"] if alert["severity"] == "critical"]
    for page in pages:
        assert page["row"] <= page["last_row"] < run["rows"]
        assert page["last_step"] == page["last_row"] + 1
    rows = [row for page in pages for row in range(page["row"], page["last_row"] + 1)]
    assert len(rows) == len(set(rows)) > 5


@pytest.mark.parametrize("more", [[], ["--fail-on", "critical"], ["--json"]])
def test_too_few_rows_are_never_no_page(run_cli, tmp_path: Path, more: list[str]):
    file = tmp_path / "reward.csv"
    file.write_text("step,critic/score/mean,critic/score/max\n" + "1,0.5,1\n2,0.5,1\n3,0.5,1\n")
    done = run_cli("backtest", *more, str(file))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line == (
        f"dfx-agent: {file} is not judged: no row could be compared with rows before it (3 rows)"
    )
    assert "no page" not in done.stdout


def test_signals_that_never_change_are_not_judged(run_cli, tmp_path: Path):
    file = tmp_path / "constant.csv"
    rows = "".join(f"{step},0.5,20\n" for step in range(1, 40))
    file.write_text("step,critic/score/mean,response_length/mean\n" + rows)
    done = run_cli("backtest", str(file))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.endswith("not judged: the values of response_length and reward never change")
    assert "0 judged" in done.stdout
    assert ": no page" not in done.stdout


def test_a_step_counter_that_restarts_is_reported(run_cli, tmp_path: Path):
    file = as_csv(tmp_path / "two.csv.gz", [*steps(collapse=False), *steps(collapse=False)])
    done = run_cli("backtest", str(file))
    assert done.returncode == 0
    assert f"row {NUM_STEPS}: the step falls from {NUM_STEPS} to 1; a new attempt begins" in (
        done.stdout
    )
    (run,) = json.loads(run_cli("backtest", "--json", str(file)).stdout)["runs"]
    assert run["restarts"] == [{"row": NUM_STEPS, "step_before": NUM_STEPS, "step": 1}]
    assert not any(alert["severity"] == "critical" for alert in run["alerts"])


def test_keys_that_the_user_names_are_judged(run_cli, tmp_path: Path):
    names = {"critic/score/mean": "env/all/zeta", "response_length/mean": "env/omega"}
    renamed = [
        {"n" if key == "step" else names.get(key, f"own/{i}"): value
         for i, (key, value) in enumerate(row.items())}
        for row in steps(collapse=True)
    ]  # fmt: skip
    file = as_jsonl(tmp_path / "metrics.jsonl", renamed)
    assert run_cli("backtest", str(file)).returncode == 1
    maps = [f"--map={name}" for name in (
        "step=n", "reward=env/all/zeta", "response_length=env/omega")]  # fmt: skip
    done = run_cli("backtest", "--json", *maps, str(file))
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert run["signals"]["reward"]["keys"] == ["env/all/zeta"]
    assert any(alert["step"] >= ONSET for alert in run["alerts"])
    wrong = run_cli("backtest", "--map", "rewards=x", str(file))
    assert wrong.returncode == 2
    assert "there is no signal 'rewards'" in wrong.stderr


def trl_line(row: dict[str, float]) -> str:
    return str({
        "loss": row["actor/pg_loss"], "grad_norm": row["actor/grad_norm"], "learning_rate": 1e-6,
        "completion_length": row["response_length/mean"], "reward": row["critic/score/mean"],
        "kl": 0.01, "epoch": row["step"] / NUM_STEPS,
    })  # fmt: skip


def test_a_folder_of_mixed_logs_is_read_with_nothing_passed_over_silently(run_cli, tmp_path: Path):
    rows = steps(collapse=True)
    as_csv(tmp_path / "a.csv.gz", rows)
    as_console(tmp_path / "b.log", rows)
    as_jsonl(tmp_path / "c.jsonl", rows)
    (tmp_path / "d.out").write_text("\n".join(f"\r 5%|5 | 1/9\r{trl_line(row)}" for row in rows))
    cell = {"cell_type": "code", "outputs": [{"text": [trl_line(row) + "\n" for row in rows]}]}
    (tmp_path / "e.ipynb").write_text(json.dumps({"cells": [cell], "nbformat": 4}))
    for step in (50, 150):
        folder = tmp_path / "trl" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        history = [
            {
                "step": row["step"],
                "reward": row["critic/score/mean"],
                "completion_length": row["response_length/mean"],
            }
            for row in rows[:step]
        ]
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
        (folder / "config.json").write_text('{\n "hidden_size": 8\n}')
        (folder / "model.safetensors").write_bytes(bytes(9))
    (tmp_path / "cut.csv.gz").write_bytes((tmp_path / "a.csv.gz").read_bytes()[:-1500])
    (tmp_path / "README.md").write_text("# Runs, and more\n\nSome, text.\n")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1" + bytes(20))
    done = run_cli("backtest", "--json", str(tmp_path))
    result = json.loads(done.stdout)
    by_name = {str(Path(run["file"]).relative_to(tmp_path)): run for run in result["runs"]}
    whole = {"a.csv.gz", "b.log", "c.jsonl", "d.out", "e.ipynb",
             "trl/checkpoint-150/trainer_state.json"}  # fmt: skip
    assert by_name.keys() == whole | {"cut.csv.gz", "broken.parquet"}
    for name in whole:
        assert by_name[name]["rows"] == NUM_STEPS, name
        assert any(a["severity"] == "critical" for a in by_name[name]["alerts"]), name
    assert 0 < by_name["cut.csv.gz"]["rows"] < NUM_STEPS
    assert any("cut off" in line for line in by_name["cut.csv.gz"]["warnings"])
    assert [name for name, run in by_name.items() if run["is_cut"]] == ["cut.csv.gz"]
    passed = {entry["file"]: entry["reason"] for entry in result["summary"]["passed_over"]}
    everything = {str(path) for path in tmp_path.rglob("*") if path.is_file()}
    assert everything == passed.keys() | {run["file"] for run in result["runs"]}
    assert done.returncode == 1
    assert "broken.parquet" in done.stderr


def test_a_partly_judged_log_is_not_clean(run_cli, tmp_path: Path):
    as_csv(tmp_path / "whole.csv.gz", steps(collapse=False))
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes((tmp_path / "whole.csv.gz").read_bytes()[:-500])
    assert run_cli("backtest", str(tmp_path / "whole.csv.gz")).returncode == 0
    done = run_cli("backtest", str(cut))
    assert done.returncode == 1
    assert f"{cut} is damaged: the first " in done.stderr


# ------------------------------------------------------------------------------------- --summary


def test_the_summary_counts_pages_against_labels(run_cli, tmp_path: Path):
    for i in range(3):
        as_csv(tmp_path / f"good{i}.csv.gz", steps(collapse=False))
    as_csv(tmp_path / "bad.csv.gz", steps(collapse=True))
    as_csv(tmp_path / "unlabelled.csv.gz", steps(collapse=False))
    (tmp_path / "LABELS.csv").write_text(
        "path,kind,onset_row,sample\ngood0.csv.gz,healthy,,in\ngood1.csv.gz,healthy,,out\n"
        f"good2.csv.gz,ambiguous,,out\nbad.csv.gz,collapse,{ONSET - 1},out\n"
    )
    done = run_cli("backtest", "--summary", "--json", str(tmp_path))
    assert done.returncode == 0, done.stderr
    rates = json.loads(done.stdout)["summary"]["rates"]
    assert rates["unlabelled"] == [str(tmp_path / "unlabelled.csv.gz")]
    groups = {group["group"]: group for group in rates["groups"]}
    assert groups.keys() == {"all", "sample: in", "sample: out", "verl"}
    assert (groups["all"]["num_runs"], groups["all"]["num_collapses"]) == (4, 1)
    assert groups["all"]["num_found"] == groups["sample: out"]["num_found"] == 1
    assert groups["all"]["num_healthy_rows"] == 2 * NUM_STEPS + ONSET - 1 - 5
    assert groups["sample: in"]["num_false_pages"] == 0
    table = run_cli("backtest", "--summary", str(tmp_path)).stdout
    assert "| all | 4 | 600 | 414 | 1 of 1 | 21% to 100% |" in table
    assert "1 runs have no label and are in no row." in table


def test_a_summary_without_labels_is_wrong_use(run_cli, tmp_path: Path, good: Path):
    done = run_cli("backtest", "--summary", str(good))
    assert done.returncode == 2
    assert "LABELS.csv" in done.stderr
    (tmp_path / "LABELS.csv").write_text("path,kind\ngood.csv.gz,fine\n")
    done = run_cli("backtest", "--summary", str(good))
    assert "line 2: kind is 'fine'" in done.stderr


def test_a_dead_run_that_is_too_short_to_be_called_dead_is_not_judged(run_cli, tmp_path: Path):
    file = tmp_path / "dead.csv"
    header = "step,critic/score/mean,actor/grad_norm\n"
    for num_rows, is_found in ((20, False), (40, True)):
        file.write_text(header + "".join(f"{step},0,0\n" for step in range(num_rows)))
        done = run_cli("backtest", str(file))
        assert ("Nothing has been learned since step 0" in done.stdout) is is_found
        assert ("is not judged" in done.stderr) is not is_found
        assert done.returncode == (0 if is_found else 1)

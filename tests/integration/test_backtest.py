"""``dfx-agent backtest`` over files of every format, made here and real."""

import csv
import gzip
import json
import os
import random
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("DFX_BENCH_DATA", ROOT.parent / "shared" / "data"))

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
    assert any("critical" in line and "length since 1" in line for line in lines[1:3])
    assert lines[-2].endswith("no page")
    assert lines[-1].startswith("2 runs, 300 rows: 1 pages (0.333 per 100) in 1 runs")


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


CALM = {"divergence_families": 6, "divergence_families_with_reward": 6}


def test_thresholds_of_the_settings_are_those_of_the_agent(run_cli, tmp_path: Path, bad: Path):
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps({"thresholds": CALM, "listen": ":9000"}))
    done = run_cli("backtest", "--json", "--config", str(file), str(bad))
    result = json.loads(done.stdout)
    severities = {alert["severity"] for alert in result["runs"][0]["alerts"]}
    assert "critical" not in severities
    assert "warning" in severities
    assert result["summary"]["thresholds"] == CALM
    told = run_cli("backtest", "--config", str(file), str(bad)).stdout
    assert told.splitlines()[-1].endswith("; 2 thresholds of yours")


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
    path = DATA / "INVENTORY.csv"
    if not path.is_file():
        pytest.skip(f"no {path}; set DFX_BENCH_DATA to the folder of real runs")
    with path.open() as file:
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


def test_the_console_log_of_a_real_run_gives_what_its_table_gives(
    run_cli, inventory: list[dict[str, str]]
):
    name = "verl_opd_gjvwlq13"
    files = [DATA / "logs" / f"{name}.console.log", DATA / "runs" / f"{name}.csv.gz"]
    done = run_cli("backtest", "--json", *map(str, files))
    console, table = json.loads(done.stdout)["runs"]
    assert console["rows"] == table["rows"]
    assert console["alerts"] == table["alerts"]

"""``dfx-agent assets``: what it writes, from a checkout and from an installed wheel."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def unpacked_wheel(tmp_path_factory):
    """The wheel as pip would lay it down, built from this checkout."""
    builder = pytest.importorskip(
        "hatchling.build", reason="no hatchling; pip install hatchling", exc_type=ImportError
    )
    folder = tmp_path_factory.mktemp("wheel")
    here = Path.cwd()
    os.chdir(ROOT)
    try:
        name = builder.build_wheel(str(folder))
    finally:
        os.chdir(here)
    with zipfile.ZipFile(folder / name) as wheel:
        wheel.extractall(folder / "site")
    return folder / "site"


def files(folder):
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def alerts(folder):
    found = [
        rule
        for path in sorted((folder / "rules").glob("*.rules.yaml"))
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule  # others record
    ]
    assert len(found) > 20
    return found


def expression(folder, name):
    return next(rule["expr"] for rule in alerts(folder) if rule["alert"] == name)


@pytest.mark.smoke
def test_everything_is_written_and_prometheus_and_alertmanager_take_it(
    run_cli, tmp_path, promtool_binary, alertmanager_binary
):
    folder = tmp_path / "assets"
    done = run_cli("assets", str(folder), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    made = files(folder)
    assert done.stdout == f"dfx-agent: wrote {len(made)} files into {folder}\n"
    boards = {path.name: path.read_bytes() for path in (ROOT / "dashboards/generated").iterdir()}
    assert {name.partition("/")[2]: text for name, text in made.items()
            if name.startswith("dashboards/")} == boards  # fmt: skip
    assert made["alertmanager.yml"] == (ROOT / "deploy" / "alertmanager.yml").read_bytes()
    assert {"runbook.md", "kubernetes/dfx.prometheusrule.yaml",
            "grafana/provisioning/datasources/prometheus.yaml"} <= set(made)  # fmt: skip
    for command in (
        [promtool_binary, "check", "config", "prometheus.yml"],
        ["amtool", "check-config", "alertmanager.yml"],
    ):
        checked = subprocess.run(
            command, cwd=folder, check=False, capture_output=True, text=True, timeout=60
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_an_installed_wheel_writes_the_same(unpacked_wheel, run_cli, tmp_path):
    assert run_cli("assets", "here", cwd=tmp_path).returncode == 0
    env = {**os.environ, "PYTHONPATH": str(unpacked_wheel)}
    code = "import dfx_agent, sys; from dfx_agent.commands import main; print(dfx_agent.__file__);"
    done = subprocess.run(
        [sys.executable, "-c", f"{code} sys.exit(main(['assets', 'there']))"],
        cwd=tmp_path, env=env, check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(unpacked_wheel))
    assert files(tmp_path / "there") == files(tmp_path / "here")


def test_thresholds_and_links_are_the_user_s(run_cli, tmp_path):
    (tmp_path / "dfx.yaml").write_text(
        "thresholds: {entropy_drift_ratio: 4, length_drift_ratio: 3}\n"
    )
    done = run_cli(
        "assets", "out", "--set", "entropy_drift_ratio=4.5", "--set",
        "grafana_url=https://grafana.example.org/", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "> 4.5)" in expression(tmp_path / "out", "DfxEntropyDrift")
    assert "> 3)" in expression(tmp_path / "out", "DfxLengthDrift")
    assert "| 4.5 |" in (tmp_path / "out" / "runbook.md").read_text()
    for rule in alerts(tmp_path / "out"):
        assert rule["annotations"]["dashboard_url"].startswith("https://grafana.example.org/d/dfx-")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["out", "--set", "entropy_ratio=4"], "nearest are entropy_drift_ratio"),
        (["out", "--set", "entropy_drift_ratio"], "write KEY=VALUE"),
        (["out", "--set", "entropy_drift_ratio=much"], "must be a number, not 'much'"),
        (["out", "--set", "identical_score_steps=nan"], "must be a number of steps, not 'nan'"),
        ([], "write `dfx-agent assets DIR`"),
    ],
)
def test_wrong_use_is_one_line_and_writes_nothing(run_cli, tmp_path, arguments, message):
    done = run_cli("assets", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_threshold_in_the_settings_file_is_an_error_of_every_verb(run_cli, tmp_path):
    (tmp_path / "dfx.yaml").write_text("thresholds: {entropy_drift: 4}\n")
    for arguments in (["assets", "out"], ["serve", "--listen", "127.0.0.1:0"]):
        done = run_cli(*arguments, cwd=tmp_path, env={**os.environ, "DFX_DIR": str(tmp_path)})
        assert done.returncode == 2
        assert "unknown threshold 'entropy_drift': nearest are entropy_drift_ratio" in done.stderr


def test_files_of_the_user_are_not_overwritten_without_force(run_cli, tmp_path):
    assert run_cli("assets", "out", cwd=tmp_path).returncode == 0
    mine = tmp_path / "out" / "alertmanager.yml"
    mine.write_text("mine")
    done = run_cli("assets", "out", "--set", "entropy_drift_ratio=9", cwd=tmp_path)
    assert done.returncode == 2
    assert "give --force" in done.stderr
    assert mine.read_text() == "mine"
    assert "> 5)" in expression(tmp_path / "out", "DfxEntropyDrift")
    assert run_cli("assets", "out", "--force", cwd=tmp_path).returncode == 0
    assert mine.read_bytes() == (ROOT / "deploy" / "alertmanager.yml").read_bytes()


def test_the_list_names_every_threshold_with_its_default(run_cli, tmp_path):
    from dfx_agent.catalogue.alerts.declared import thresholds

    listed = run_cli("assets", "--list", cwd=tmp_path).stdout
    for key in thresholds():
        assert f"\n{key} = " in f"\n{listed}"
    assert "entropy_drift_ratio = 5:" in listed


def test_the_token_is_the_user_s_once_it_is_there(run_cli, tmp_path):
    assert run_cli("assets", "out", cwd=tmp_path).returncode == 0
    token = tmp_path / "out" / "dfx-agent-token"
    token.write_text("mine")
    for more in ([], ["--force"]):
        assert run_cli("assets", "out", *more, cwd=tmp_path).returncode == 0
        assert token.read_text() == "mine"

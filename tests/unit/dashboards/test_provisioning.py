"""What people copy into Grafana and Prometheus fits together."""

import subprocess
from pathlib import Path

import yaml
from board_files import BOARDS, ROOT

DEPLOY = ROOT / "deploy"
PROVISIONING = DEPLOY / "grafana" / "provisioning"


def read(path):
    return yaml.safe_load(path.read_text())


def test_promtool_accepts_the_configuration(promtool_binary):
    checked = subprocess.run(
        [promtool_binary, "check", "config", str(DEPLOY / "prometheus.yml")],
        check=False, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr


def test_grafana_knows_the_true_scrape_interval():
    """A wrong one would draw at the wrong step, and leave holes in rates."""
    (source,) = read(PROVISIONING / "datasources" / "prometheus.yaml")["datasources"]
    interval = read(DEPLOY / "prometheus.yml")["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == interval
    assert source["type"] == BOARDS["dfx-e2e"]["templating"]["list"][0]["query"] == "prometheus"


def test_boards_go_into_one_folder_that_people_cannot_edit_by_accident():
    (provider,) = read(PROVISIONING / "dashboards" / "dfx.yaml")["providers"]
    assert (provider["type"], provider["allowUiUpdates"]) == ("file", False)
    assert Path(provider["options"]["path"]).is_absolute()

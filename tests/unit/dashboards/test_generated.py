"""The committed JSON is what the code says, and nothing that Grafana's schema does not know."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from board_files import BOARDS, FOLDER, ROOT

REASON = "no grafana-foundation-sdk; it needs Python 3.11; pip install 'dfx-agent[dev]'"
encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder", reason=REASON)
# Only the classic schema is read by Grafana 10 to 13.
pytestmark = pytest.mark.filterwarnings("ignore:Prefer using dashboardv2:DeprecationWarning")


def generated(folder):
    done = subprocess.run(
        [sys.executable, "-m", "dashboards.build", str(folder)],
        cwd=ROOT, check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {path.name: path.read_text() for path in Path(folder).iterdir()}


def test_committed_boards_are_up_to_date_and_generation_is_deterministic(tmp_path):
    committed = {path.name: path.read_text() for path in FOLDER.iterdir()}
    stale = tmp_path / "old.json"
    stale.write_text("{}")
    made = generated(tmp_path)
    assert made == committed, "dashboards/generated is stale: run `make generate`"
    assert generated(tmp_path) == made


def read_back(board):
    from grafana_foundation_sdk.cog import plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    plugins.register_default_plugins()
    again = json.loads(encoder.JSONEncoder().encode(Dashboard.from_json(board)))
    for panel in again["panels"]:
        if panel["type"] == "state-timeline":
            del panel["options"]["perPage"]  # the SDK puts its default back: a pager
    return again


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_the_sdk_knows_all_that_is_written(board):
    assert read_back(board) == board


def test_the_round_trip_would_find_a_typing_error():
    board = json.loads(json.dumps(BOARDS["dfx-ranks"]))
    board["panels"][1]["optoins"] = {"calculate": False}
    assert read_back(board) != board


def test_a_metric_or_label_that_is_not_declared_cannot_be_queried():
    sys.path.insert(0, str(ROOT))
    from dashboards.promql import of_run
    from dfx_agent.catalogue.per_rank import RANK_UP

    assert of_run(RANK_UP, rank="~$rank") == 'dfx_rank_up{run="$run",rank=~"$rank"}'
    assert of_run(RANK_UP, rank="!~a|b", role="!x").endswith('rank!~"a|b",role!="x"}')
    with pytest.raises(ValueError, match="dfx_rank_up has no label gpu"):
        of_run(RANK_UP, gpu="0")

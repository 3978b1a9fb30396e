"""A panel counts what the agent's page counts, also what was there at the first scrape."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from board_files import filled, panel_queries

RANK = 'job="dfx",instance="n0",run="it",node="n",role="actor"'


@pytest.mark.parametrize(("values", "shown"), [("1+0x60", 1.0), ("0+0x40 2+0x20", 2.0)])
def test_one_out_of_memory_error_is_one_on_the_board(promtool_binary, tmp_path, values, shown):
    (query,) = [q for q in panel_queries() if q.panel == "Out-of-memory errors"]
    series = f'dfx_gpu_mem_ooms_total{{{RANK},rank="3",device="cuda:0"}}'
    limit = f'dfx_gpu_mem_limit_bytes{{{RANK},rank="3",device="cuda:0"}}'
    test = {
        "interval": "30s",
        "input_series": [
            {"series": series, "values": values},
            {"series": limit, "values": "8e10+0x60"},
        ],
        "promql_expr_test": [
            {
                "expr": filled(query.text, run="it", role="actor", rank=".*"),
                "eval_time": "25m",
                "exp_samples": [{"labels": "{}", "value": shown}],
            }
        ],
    }
    path = Path(tmp_path, "tests.yaml")
    path.write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}))
    done = subprocess.run(
        [promtool_binary, "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

"""Every bench of the folder runs, and its rows are whole; --quick, so the figures mean nothing."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHES = sorted(
    path.stem for path in (ROOT / "bench").glob("*.py") if "report(measure)" in path.read_text()
)


def test_a_whole_run_knows_every_bench_of_the_folder():
    from bench.__main__ import BENCHES as WHOLE_RUN

    assert sorted(WHOLE_RUN) == BENCHES


@pytest.mark.parametrize("bench", BENCHES)
def test_it_runs(bench, tmp_path):
    out = tmp_path / "rows.json"
    env = {name: value for name, value in os.environ.items() if not name.startswith("DFX_")}
    done = subprocess.run(
        [sys.executable, "-m", "bench", bench, "--quick", "--out", str(out)],
        cwd=ROOT, env=env, check=False, capture_output=True, text=True, timeout=270,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())
    assert rows or "left out" in done.stderr  # divergence, where its data is not there
    for row in rows:
        assert math.isfinite(row["value"]), row
        assert row["name"]
        assert row["n"] > 0
        assert {"commit", "is_dirty"} <= set(row["machine"])

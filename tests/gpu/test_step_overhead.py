"""Step time of a training on a GPU with the guest, without it, and without it again (A/A)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")

from bench.estimates import bootstrap_interval, geometric_mean, median  # noqa: E402 (after the visible skip)

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device: run tests/gpu on a machine that has one"
)

ROOT = Path(__file__).resolve().parents[2]
NUM_ROUNDS = 30


def rounds(folder: Path, device: str = "cuda", num_rounds: int = NUM_ROUNDS) -> dict[str, object]:
    """What the job says: seconds of a step by arm, of each round."""
    known = {name: text for name, text in os.environ.items() if not name.startswith("DFX_")}
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("timed_job.py")), device, str(num_rounds)],
        capture_output=True, text=True, check=False, timeout=240,
        env={**known, "DFX_DIR": str(folder), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout)


def test_no_step_waits_for_the_device_and_what_the_guest_costs_is_told(dfx_dir, record_property):
    reported = rounds(dfx_dir)
    assert reported["num_waits"] == 0, "a step under the guest waited for the device"
    assert reported["num_records"] > 0, "the guest recorded nothing: this says nothing"
    seconds = reported["seconds"]
    on_off = [r["on"] / geometric_mean([r["off"], r["again"]]) for r in seconds]
    same = [r["again"] / r["off"] for r in seconds]
    record_property("step", f"{median([r['off'] for r in seconds]) * 1e3:.3f} ms without the guest")
    for name, ratios in (("on / off", on_off), ("off / off again (A/A)", same)):
        low, high = bootstrap_interval(geometric_mean, ratios)
        text = f"{geometric_mean(ratios):.4f}, 95 % interval {low:.4f} to {high:.4f}"
        record_property(name, f"{text}, {len(ratios)} rounds")

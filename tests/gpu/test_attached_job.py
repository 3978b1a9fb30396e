"""``dfx-agent attach`` to a CUDA job that nobody prepared: two ranks on one device, then left."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")
pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed: pip install nvidia-ml-py")

from live_processes import until  # noqa: E402 (after the visible skips)
from test_attach import NUM_RANKS, attached, has_samples, interrupt, torchrun  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device: run tests/gpu on a machine that has one"
)

_PATIENCE_SECONDS = 90.0
SHOWN = (
    ("dfx_rank_step_seconds",),
    ("dfx_rank_stage_active_seconds_total", 'stage="backward"'),
    ("dfx_loss",),
    ("dfx_grad_norm",),
)


def test_two_ranks_on_one_device_are_seen_and_left_as_they_were(
    dfx_dir, tmp_path, monkeypatch, record_property
):
    monkeypatch.setenv("JOB_DEVICE", "cuda:0")
    with torchrun(tmp_path) as job:
        assert job.changed() == [[], []]
        with attached(job.launcher.pid, tmp_path) as agent:
            until(lambda: is_seen(agent), "both ranks show all", _PATIENCE_SECONDS)
            rows = list(agent.ranks().values())
            interrupt(agent)
            reported = agent.process.errors
        begin, after = job.reports(), job.reports()
    assert len({tuple(row["device_names"]) for row in rows}) == 1, "both are on one device"
    assert [report["changed"] for report in after] == [[], []]
    assert all(b["step"] < a["step"] for b, a in zip(begin, after, strict=True))
    record_property("devices of both", rows[0]["device_names"])
    record_property("allocated by rank", [allocated(row) for row in rows])
    record_property("by the driver", [row["device_bytes"] for row in rows])
    record_property("attached in", re.findall(r"attached in (\S+ s \([^)]*\))", reported))


def is_seen(agent) -> bool:
    """Whether each rank has its steps, its device and what it has allocated there."""
    rows, text = list(agent.ranks().values()), agent.get("/metrics")
    return (
        len(rows) == NUM_RANKS
        and all(row["device_names"] and allocated(row) for row in rows)
        and all(has_samples(text, *wanted) for wanted in SHOWN)
    )


def allocated(row) -> dict[str, float]:
    """Bytes by torch's name of the device."""
    return {one["device"]: one["allocated_bytes"] for one in row["devices"]}

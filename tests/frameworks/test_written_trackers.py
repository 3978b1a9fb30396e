"""Steps written by the real libraries, offline, and read back from what they left."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
from live_processes import until

from dfx_agent.base.errors import ConfigError, TrackerError
from dfx_agent.exporters.trackers.writing import open_trackers
from dfx_agent.node.logs.run import Notes
from dfx_agent.node.logs.tensorboard import read_tensorboard

# several times as many values as one step of a real job, so that records span blocks
WIDE = {f"wide/{i}": float(i) for i in range(400)}
STEPS = {
    step: {"reward": step / 10, "actor/kl": math.nan, "time/rollout/total": 0.25, **WIDE}
    for step in range(1, 41)
}


@pytest.fixture(autouse=True)
def nobody_is_logged_in(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith(("WANDB_", "SWANLAB_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.chdir(tmp_path)


def write(tracker, run="a/b"):
    writer = tracker(run)
    for step, metrics in STEPS.items():
        writer.write(step, 1000.0 + step, metrics)
    writer.close()


def agree(read):
    """Whether every step is there once, in order, with every value."""
    assert [step for step, _ in read] == list(STEPS)
    for step, values in read:
        assert math.isnan(values["actor/kl"])
        expected = {k: v for k, v in STEPS[step].items() if k != "actor/kl"}
        assert {key: values[key] for key in expected} == pytest.approx(expected, rel=1e-6)


def test_tensorboard_reads_what_is_written(tmp_path):
    pytest.importorskip(
        "tensorboardX", reason="no tensorboardX; `make test-frameworks` installs it"
    )
    (tracker,) = open_trackers(["tensorboard"], {"tensorboard": {"log_dir": "tb"}}).values()
    write(tracker)
    folder = tmp_path / "tb" / "a%2Fb"
    agree([(record.pop("step"), record) for record in read_tensorboard(folder, Notes())])
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="no tensorboard; `make test-frameworks` installs it",
    )
    events = accumulator.EventAccumulator(str(folder), {"scalars": 0})
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(STEPS[1])
    rewards = events.Scalars("reward")
    assert [(e.step, round(e.value, 6), e.wall_time) for e in rewards] == [
        (step, step / 10, 1000.0 + step) for step in STEPS
    ]


def test_a_tensorboard_folder_that_is_gone_raises_where_it_is_written(tmp_path):
    pytest.importorskip(
        "tensorboardX", reason="no tensorboardX; `make test-frameworks` installs it"
    )
    (tracker,) = open_trackers(["tensorboard"], {}).values()
    (tmp_path / "runs" / "r").touch()
    with pytest.raises(OSError, match="exists"):
        tracker("r")


def scanned(path, reader, record):
    """Records of a transaction log, in order."""
    reader.open(path)
    found = []
    while (data := reader.scan()) is not None:
        found.append(record.FromString(data))
    reader.close()
    return found


def test_wandb_offline_keeps_every_step(tmp_path):
    pytest.importorskip("wandb", reason="no wandb; `make test-frameworks` installs it")
    from wandb.proto.wandb_internal_pb2 import Record

    stores = pytest.importorskip("swanlab.converter.wb.wbdatastore", reason="no reader of wandb")
    options = {"mode": "offline", "dir": "wb", "project": "p"}
    (tracker,) = open_trackers(["wandb"], {"wandb": options}).values()
    first, second = tracker("a/b"), tracker("c")  # two runs at once
    for step, metrics in STEPS.items():
        first.write(step, 1000.0 + step, metrics)
        second.write(step, 1000.0 + step, {"reward": 0.0})
    first.close()
    second.close()

    def written():  # by a process of wandb's own, which close() does not wait for
        files = (tmp_path / "wb").rglob("run-*.wandb")
        logs = [scanned(file, stores.WBDataStoreReader(), Record) for file in files]
        is_complete = len(logs) == 2 and all(any(r.HasField("exit") for r in log) for log in logs)
        return logs if is_complete else None

    logs = until(written, "both files are complete")
    by_run = {next(r.run.display_name for r in log if r.HasField("run")): log for log in logs}
    assert set(by_run) == {"a/b", "c"}
    rows = [list(map(_of_wandb, r.history.item)) for r in by_run["a/b"] if r.HasField("history")]
    read = [dict(row) for row in rows]
    agree([(int(values["_step"]), values) for values in read])
    assert [values["_timestamp"] for values in read] == [1000.0 + step for step in STEPS]


def _of_wandb(item):
    return "/".join(item.nested_key) or item.key, float(item.value_json.strip('"'))


def test_swanlab_offline_keeps_every_step_and_refuses_a_second_run_at_once(tmp_path):
    pytest.importorskip("swanlab", reason="no swanlab; `make test-frameworks` installs it")
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    options = {"mode": "offline", "log_dir": "sw", "project": "p"}
    (tracker,) = open_trackers(["swanlab"], {"swanlab": options}).values()
    held = tracker("held")
    with pytest.raises(RuntimeError, match="inactive Run"):
        tracker("other")
    held.close()
    for file in (tmp_path / "sw").rglob("run-*.swanlab"):
        file.unlink()
    write(tracker)
    (file,) = (tmp_path / "sw").rglob("run-*.swanlab")
    read: dict[int, dict[str, float]] = {}
    for record in scanned(file, DataStoreReader(), Record):
        if record.HasField("scalar"):
            scalar = record.scalar
            values = read.setdefault(scalar.step, {})
            assert scalar.key not in values
            values[scalar.key] = scalar.value.number
    agree(list(read.items()))


@pytest.mark.parametrize(
    ("name", "options", "error", "says"),
    [
        ("wandb", {}, TrackerError, "wandb: no API key: run `wandb login`, or set tracker_kwargs"),
        ("wandb", {"mode": "wrong"}, ConfigError, "tracker_kwargs.wandb: .*'offline'"),
        ("wandb", {"foo": 1}, ConfigError, "tracker_kwargs.wandb: unknown key 'foo'"),
        ("swanlab", {}, TrackerError, "swanlab: .*API key.*: run `swanlab login`"),
        ("swanlab", {"mode": "wrong"}, ConfigError, "tracker_kwargs.swanlab: .*offline"),
        ("swanlab", {"mode": "local"}, TrackerError, "swanboard: pip install"),
    ],
)
def test_what_cannot_open_says_why_and_what_to_do(name, options, error, says, monkeypatch):
    pytest.importorskip(name, reason=f"no {name}; `make test-frameworks` installs it")
    if options.get("mode") == "local":
        monkeypatch.setitem(sys.modules, "swanboard", None)
    with pytest.raises(error, match=says) as caught:
        open_trackers([name], {name: options})
    assert "\n" not in str(caught.value)


LOSES_ITS_SERVICE = """
import os, psutil
from dfx_agent.exporters.trackers.writing import open_trackers
(tracker,) = open_trackers(["wandb"], {"wandb": {"mode": "offline"}}).values()
writer = tracker("r")
writer.write(1, 1.0, {"loss": 1.0})
service = [p for p in psutil.Process().children() if "wandb" in p.name()]
for process in service:
    process.kill()
    process.wait(30)
for step in range(2, 200):
    try:
        writer.write(step, 1.0, {"loss": 1.0})
    except Exception as error:
        print("RAISED", type(error).__name__, flush=True)
        break
os._exit(0)
"""


def test_wandb_without_its_service_raises_where_it_is_written():
    pytest.importorskip("wandb", reason="no wandb; `make test-frameworks` installs it")
    done = subprocess.run(
        [sys.executable, "-c", LOSES_ITS_SERVICE],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "RAISED" in done.stdout, done.stderr


ARMED_JOB = """
import time
import dfx_agent.shim as dfx
dfx.init(role="trainer", framework="trl")
for step in range(1, 40):
    dfx.set_step(step)
    time.sleep(0.15)
    dfx.scalar("reward", step / 10, step=step)
"""


def test_an_agent_that_is_armed_itself_does_not_follow_its_own_tracker(
    tmp_path, dfx_dir, free_port, run_cli
):
    pytest.importorskip("wandb", reason="no wandb; `make test-frameworks` installs it")
    (tmp_path / "job.py").write_text(ARMED_JOB)
    (tmp_path / "dfx.yaml").write_text(
        "track_with: [jsonl, wandb]\ntracker_kwargs: {wandb: {mode: offline}}\n"
    )
    listen = f"127.0.0.1:{free_port()}"
    command = ("run", "--run", "r", "--listen", listen, "--", sys.executable, "job.py")
    done = run_cli(*command, cwd=tmp_path, env={**os.environ, "DFX_AGENT": "1"})
    assert done.returncode == 0, done.stderr
    assert [file.name for file in (tmp_path / "dfx-metrics").iterdir()] == ["r.jsonl"]
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 1

"""Closed steps reach each tracker in order and once; what fails or comes late is counted."""

import dataclasses
import json
import math
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from dfx_agent.base.errors import ConfigError, TrackerError
from dfx_agent.exporters.prometheus.exporter import PrometheusExporter
from dfx_agent.exporters.trackers import jsonl, stdout
from dfx_agent.exporters.trackers import writing as trackers
from dfx_agent.exporters.trackers.tracker import file_name
from dfx_agent.exporters.trackers.writing import Trackers, TrackerThread, open_trackers
from dfx_agent.node.logs.reader import read as read_log
from dfx_agent.snapshot import AgentRow, RankRow, RunRow, Snapshot, StepCell, StepRow, TimeSplit

AGENT = AgentRow("0", 1, "n", 0.0, 1, 0.0, 1, 5, 0, 0, 0, None, ())


def rank_row(rank: str = "0", step: int | None = None, state: str = "live") -> RankRow:
    return RankRow(
        role="trainer", rank=rank, local_rank=None, world_size=None, node="n", pid=1, attempt=0,
        state=state, begin_seconds=1.0, last_event_seconds=None, step=step,
        step_begin_seconds=None, inflight=(), totals=TimeSplit(), current=TimeSplit(), last=None,
        tokens_total={}, queue_depth={}, policy_version=None, scalars=(), stamps=(),
        num_records=5, num_lost_records=0, num_late_records=0, num_guest_drops=0,
    )  # fmt: skip


def step_row(step: int, ranks: str = "0", wall_seconds: float = 1.0) -> StepRow:
    split = TimeSplit(wall_seconds, wall_seconds, 0.0, {"rollout": wall_seconds})
    cells = tuple(StepCell(rank, split, {}) for rank in ranks)
    return StepRow(step, "trainer", step * 10.0, step * 10.0 + wall_seconds, (), None, cells)


class Job:
    """A job as the agent would tell it; what tests change is public."""

    def __init__(self):
        self.rows: list[StepRow] = []
        self.scalars: dict[int, dict[str, float]] = {}
        self.ranks = [rank_row()]
        self.name = "r"

    def snapshot(self):
        run = RunRow(self.name, "trl", 0, 1.0, tuple(self.ranks), tuple(self.rows), ())
        return Snapshot(2.0, AGENT, (run,))

    def closed_steps(self, run, after_step):
        return tuple(row for row in self.rows if after_step is None or row.step > after_step)

    def step_scalars(self, run, after_step):
        return {n: v for n, v in self.scalars.items() if after_step is None or n > after_step}

    def is_in(self, step):
        """Every step before ``step`` is closed and has a reward."""
        self.ranks = [rank_row(step=step)]
        self.rows = [step_row(n) for n in range(1, step)]
        self.scalars = {n: {"reward": n / 10} for n in range(1, step)}


@pytest.fixture
def job():
    return Job()


@pytest.fixture
def reports():
    return []


@pytest.fixture
def follower(job, reports, tmp_path):
    tracker = jsonl.open_tracker({"log_dir": tmp_path})
    thread = TrackerThread("jsonl", tracker, job, lambda *result: reports.append(result))
    yield thread
    for run, state in thread._runs.items():
        thread._close(run, state)


@pytest.fixture
def told(tmp_path):
    """The steps in the file, as they stand there."""

    def read(run="r"):
        path = tmp_path / f"{run}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line)["step"] for line in lines]

    return read


def never_settles(monkeypatch):
    monkeypatch.setattr(trackers, "_SETTLE_SECONDS", math.inf)


def test_steps_are_returned_in_order_and_once(job, follower, told, monkeypatch):
    never_settles(monkeypatch)
    for step in (2, 3, 3, 6, 9):
        job.is_in(step)
        follower._look(is_last=False)
    assert told() == [1, 2, 3, 4, 5, 6, 7]
    job.ranks = [rank_row(step=9, state="exited")]
    job.rows.append(step_row(9))
    for _ in range(2):
        follower._look(is_last=False)
    assert told() == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_a_step_without_additions_for_a_while_is_returned(job, follower, told, monkeypatch):
    monkeypatch.setattr(trackers, "_SETTLE_SECONDS", 0.0)
    job.is_in(2)
    follower._look(is_last=False)
    assert told() == [1]
    job.scalars[2] = {"reward": 1.0}  # of the step that the job is in
    follower._look(is_last=False)
    assert told() == [1]


def test_no_step_is_returned_before_one_that_still_changes(job, follower, told, monkeypatch):
    clock = SimpleNamespace(now=0.0, time=time.time, monotonic=lambda: clock.now)
    monkeypatch.setattr(trackers, "time", clock)
    job.scalars = {n: {"reward": 1.0} for n in (1, 2, 3)}
    for clock.now, change in ((0.0, {}), (3.0, {"kl": 1.0}), (6.0, {})):
        job.scalars[2].update(change)
        follower._look(is_last=False)
    assert told() == [1]
    clock.now = 9.0
    follower._look(is_last=False)
    assert told() == [1, 2, 3]


def test_a_late_value_is_in_the_step_as_long_as_the_step_waits(
    job, follower, told, tmp_path, monkeypatch
):
    never_settles(monkeypatch)
    job.is_in(3)
    follower._look(is_last=False)
    assert told() == [1]
    job.is_in(4)
    job.scalars[2]["kl"] = 0.5
    follower._look(is_last=False)
    second = json.loads((tmp_path / "r.jsonl").read_text().splitlines()[1])
    assert (second["step"], second["data"]["kl"], second["data"]["reward"]) == (2, 0.5, 0.2)


def test_values_after_their_step_are_counted_and_not_returned(job, follower, told, monkeypatch):
    never_settles(monkeypatch)
    job.is_in(4)
    follower._look(is_last=False)
    job.scalars[1]["kl"] = 0.5
    job.rows[1] = step_row(2, ranks="01")
    for _ in range(3):
        follower._look(is_last=False)
    assert told() == [1, 2]
    assert [row.num_late_values for row in follower.rows()] == [2]


def test_steps_repeated_by_a_restarted_job_are_not_returned_again(job, follower, told, monkeypatch):
    never_settles(monkeypatch)
    job.is_in(6)
    follower._look(is_last=False)
    job.is_in(4)
    job.rows = [step_row(n, wall_seconds=2.0) for n in (2, 3)]
    follower._look(is_last=False)
    job.is_in(8)
    follower._look(is_last=False)
    assert told() == [1, 2, 3, 4, 5, 6]
    assert follower.rows()[0].num_late_values >= 2


def test_a_stuck_rank_does_not_hold_the_others_back(job, follower, told, monkeypatch):
    never_settles(monkeypatch)
    job.is_in(6)
    job.ranks = [rank_row("0", step=6), rank_row("1", step=2)]
    follower._look(is_last=False)
    assert told() == [1, 2, 3, 4]


def test_a_run_without_steps_is_ordered_by_its_values(job, follower, told, monkeypatch):
    never_settles(monkeypatch)
    job.scalars = {n: {"reward": 1.0} for n in (10, 20, 30)}
    follower._look(is_last=False)
    assert told() == [10, 20]
    follower._look(is_last=True)
    assert told() == [10, 20, 30]


def test_a_tracker_that_fails_is_given_up_counted_and_reported(
    job, follower, reports, told, tmp_path
):
    job.is_in(4)
    follower._look(is_last=False)
    follower._runs["r"].writer._file.close()  # as good as a full disk: writing raises
    job.is_in(8)
    follower._look(is_last=False)
    follower._look(is_last=False)
    (row,) = follower.rows()
    assert (row.is_active, row.num_steps, row.num_dropped_steps) == (False, 2, 4)
    ((run, name, line),) = reports
    assert (run, name) == ("r", "jsonl")
    assert line.startswith("tracker jsonl, run r: step 3 and later are not written (ValueError: ")
    assert "\n" not in line
    assert told() == [1, 2]


def test_a_run_that_cannot_begin_does_not_cost_the_others(job, follower, told, reports, tmp_path):
    (tmp_path / "r.jsonl").mkdir()
    job.is_in(4)
    follower._look(is_last=False)
    assert len(reports) == 1
    job.name = "other"
    follower._look(is_last=False)
    assert told("other") == [1, 2]


def test_stop_writes_what_is_complete_and_closes_the_file(job, tmp_path, told):
    job.is_in(3)
    tracked = Trackers({"jsonl": jsonl.open_tracker({"log_dir": tmp_path})}, job, print)
    tracked.start()
    assert tracked.stop() == []
    assert told() == [1, 2]
    (thread,) = tracked._threads.values()
    assert thread._runs["r"].writer is None


def test_its_state_is_in_the_metrics(job, follower):
    job.is_in(4)
    follower._look(is_last=False)

    class Tracked:
        def rows(self):
            (row,) = follower.rows()
            failed = {"is_active": False, "num_dropped_steps": 2, "num_late_values": 1}
            return (row, dataclasses.replace(row, tracker="wandb", **failed))

    body, _ = PrometheusExporter(job, None, Tracked()).render("text/plain")
    text = body.decode()
    for line in ('dfx_tracker_active{run="r",tracker="jsonl"} 1.0',
                 'dfx_tracker_steps_total{run="r",tracker="jsonl"} 2.0',
                 'dfx_tracker_active{run="r",tracker="wandb"} 0.0',
                 'dfx_tracker_dropped_steps_total{run="r",tracker="wandb"} 2.0',
                 'dfx_tracker_late_values_total{run="r",tracker="wandb"} 1.0'):  # fmt: skip
        assert line in text


def test_the_folder_is_the_registry():
    assert trackers.names() == ["jsonl", "stdout", "swanlab", "tensorboard", "wandb"]


def test_no_tracker_s_library_is_imported_unless_it_is_configured():
    code = (
        "import sys; from dfx_agent.exporters.trackers.writing import names; names(); "
        "print({'wandb', 'swanlab', 'tensorboardX'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("track_with", "kwargs", "says"),
    [
        (["jsnl"], {}, "no tracker 'jsnl': there are jsonl, stdout, swanlab, tensorboard, wandb"),
        (["stdout"], {"stdout": {"dir": 1}}, "tracker_kwargs.stdout: unknown key 'dir'"),
        (["jsonl"], {"wandb": {}}, "'wandb' is not in track_with"),
        ([], {"wandb": {}}, "'wandb' is not in track_with"),
    ],
)
def test_wrong_settings_are_named(track_with, kwargs, says):
    with pytest.raises(ConfigError) as caught:
        open_trackers(track_with, kwargs)
    assert says in str(caught.value)


def test_a_tracker_that_cannot_open_says_why(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(TrackerError, match=r"tracker jsonl: .*/file/x: Not a directory"):
        open_trackers(["jsonl"], {"jsonl": {"log_dir": blocked / "x"}})
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(TrackerError, match=r"tracker wandb: .*: pip install 'dfx-agent\[wandb\]'"):
        open_trackers(["wandb"], {})


@pytest.mark.parametrize("run", ["a/b", "..", ".", "", "x y", "é%2F"])
def test_a_run_s_name_is_one_file_in_the_folder(run, tmp_path):
    writer = jsonl.open_tracker({"log_dir": tmp_path})(run)
    writer.write(1, 2.0, {"loss": 1.0})
    writer.close()
    (file,) = tmp_path.iterdir()
    assert (tmp_path / file_name(run)).parent == (tmp_path / file_name(run)).resolve().parent
    assert json.loads(file.read_text())["run"] == run


def test_json_lines_are_read_back_also_what_is_not_finite(tmp_path):
    writer = jsonl.open_tracker({"log_dir": tmp_path})("r")
    values = {"loss": 0.1, "kl": math.nan, "up": math.inf, "down": -math.inf}
    writer.write(3, 2.0, values)
    writer.close()
    ((step, read),) = read_log(tmp_path / "r.jsonl").rows
    assert step == 3
    assert math.isnan(read["kl"])
    assert (read["loss"], read["up"], read["down"]) == (0.1, math.inf, -math.inf)


def test_a_line_on_stdout_is_what_verl_s_readers_know(tmp_path, capsys):
    writer = stdout.open_tracker({})("my run")
    writer.write(3, 2.0, {"actor/pg_loss": -0.25, "critic/score/mean": math.nan})
    log = tmp_path / "log"
    log.write_text(capsys.readouterr().out)
    ((step, read),) = read_log(log, "verl").rows
    assert (step, read["actor/pg_loss"]) == (3, -0.25)
    assert math.isnan(read["critic/score/mean"])
    assert log.read_text().startswith("run my run step:3 - ")


class Library:
    """wandb or swanlab as far as we call it: what it is given."""

    Settings = SimpleNamespace

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict]] = []

    def init(self, project=None, name=None, notes=None, tags=None, dir=None, log_dir=None,  # noqa: A002, PLR0913, PLR0917
             settings=None, mode=None, reinit=None):  # fmt: skip
        given = {
            k: v for k, v in locals().items() if v is not None and k not in {"self", "settings"}
        }
        self.calls.append(("init", given))

    def login(self, **options):
        self.calls.append(("login", options))
        return True

    def merge_settings(self, _):
        pass


def test_rolls_keys_of_wandb_log_in_and_name_the_run(tmp_path, monkeypatch):
    library = Library()
    monkeypatch.setitem(sys.modules, "wandb", library)
    options = {"api_key": "k", "project": "p", "name": "${exp_name}-1", "notes": "why",
               "tags": ["a"], "log_dir": str(tmp_path)}  # fmt: skip
    open_trackers(["wandb"], {"wandb": options})["wandb"]("r")
    assert library.calls[0][1]["key"] == "k"
    assert library.calls[-1] == (
        "init", {"project": "p", "name": "r-1", "notes": "why", "tags": ["a"],
                 "dir": str(tmp_path), "reinit": "create_new"},
    )  # fmt: skip


def test_rolls_keys_of_swanlab_log_in_and_name_the_experiment(tmp_path, monkeypatch):
    library = Library()
    library.Settings = SimpleNamespace(model_validate=dict)
    monkeypatch.setitem(sys.modules, "swanlab", library)
    options = {"login_kwargs": {"api_key": "k"}, "project": "p", "logdir": str(tmp_path),
               "experiment_name": "mine", "tags": ["a"]}  # fmt: skip
    open_trackers(["swanlab"], {"swanlab": options})["swanlab"]("r")
    assert library.calls == [
        ("login", {"api_key": "k"}),
        ("init", {"project": "p", "name": "mine", "tags": ["a"], "log_dir": str(tmp_path)}),
    ]

"""What the agent publishes is in the file of the run, once, also after a restart of the agent."""

import errno
import sqlite3
import time
from contextlib import closing
from dataclasses import replace

import pytest

from dfx_agent.base.errors import BlindError
from dfx_agent.catalogue.native.time_series import ScalarStore
from dfx_agent.exporters.history import folder, recording, schema, stored_run
from dfx_agent.exporters.history.recording import HistoryThread
from dfx_agent.exporters.history.run_file import Fact
from dfx_agent.snapshot import (
    AgentRow,
    AlertRow,
    Alerts,
    Incident,
    NodeRow,
    RankRow,
    RunRow,
    Snapshot,
    Standing,
    StepCell,
    StepRow,
    TimeSplit,
    Verdict,
)

AGENT = AgentRow("0.1", 1, "n", 50.0, 1, 0.0, 1, 5, 0, 0, 0, None, ())
CLEAR = Standing("clear", "All is well.")
INCIDENT = Incident(
    id="i1", kind="straggler", state="found", severity="warning", role="trainer", ranks=("1",),
    stage="rollout", cause="slow", since_seconds=100.0, step=3, lost_seconds=0.5, summary="s",
    cost="c", action="a", sentence="Rank 1 is slow.", alerts=("DfxStraggler",), evidence=("e",),
)  # fmt: skip
ALERT = AlertRow(
    "r", "DfxStraggler", "warning", {"rank": "1"}, "slow", 100.0, 3, is_inhibited=False, lines=(),
    meaning="", diagnosis="", mitigation="",
)  # fmt: skip


def rank_row(pid=7, state="live"):
    return RankRow(
        role="trainer", rank="0", local_rank=0, world_size=2, node="n", pid=pid, attempt=0,
        state=state, begin_seconds=60.0, last_event_seconds=200.0, step=None,
        step_begin_seconds=None, inflight=(), totals=TimeSplit(), current=TimeSplit(), last=None,
        tokens_total={}, queue_depth={}, policy_version=None, scalars=(), stamps=(),
        num_records=5, num_lost_records=0, num_late_records=0, num_guest_drops=0,
    )  # fmt: skip


def step_row(step, wall=1.0, ranks="01", **stages):
    split = TimeSplit(wall, wall, 0.0, stages or {"rollout": wall})
    cells = tuple(StepCell(rank, split, {"response": 10.0}) for rank in ranks)
    begin = 100.0 + step * 10.0
    return StepRow(step, "trainer", begin, begin + wall, (), None, cells)


class Job:
    """A job as the agent publishes it; what tests change is public."""

    def __init__(self):
        self.steps, self.scalars, self.alerts = [], {}, []
        self.run = RunRow("r", "trl", 0, 60.0, (rank_row(),), (), (), standing=CLEAR)
        self.agent = AGENT

    def snapshot(self):
        return Snapshot(2.0, self.agent, (self.run,))

    def closed_steps(self, run, after_step):
        return tuple(self.steps)

    def step_scalars(self, run, after_step, since_seconds=None):
        return {n: v for n, v in self.scalars.items() if after_step is None or n > after_step}

    def set_run(self, **changes):
        self.run = replace(self.run, **changes)

    def end(self):
        self.set_run(ranks=(rank_row(state="exited"),), ending="The run ended at 12:00:00.")


@pytest.fixture
def job():
    return Job()


@pytest.fixture
def reports():
    return []


@pytest.fixture
def new_writer(job, reports, tmp_path):
    writers = []

    def start(directory=tmp_path / "runs"):
        def describe(run, agent):
            return [Fact("package", "", "torch", "2.9")]

        def alerts():
            return Alerts(1.0, tuple(job.alerts), (), 1, 0)

        limits = 90, 1 << 30
        writer = HistoryThread(job, alerts, describe, reports.append, str(directory), limits)
        writers.append(writer)
        return writer

    yield start
    for writer in writers:
        for file in writer._files.values():
            file._connection.close()


@pytest.fixture
def stored(tmp_path):
    def read():
        (path,) = folder.paths(str(tmp_path / "runs"))
        return stored_run.load(path)

    return read


def steps(run):
    return [(row.step, len(row.cells)) for row in stored_run.steps_of(run.path)]


def test_steps_scalars_and_facts_are_in_the_file(job, new_writer, stored):
    job.steps, job.scalars = [step_row(1), step_row(2)], {1: {"reward": 0.5}, 2: {"reward": 0.75}}
    new_writer().write()
    run = stored()
    assert (run.run, run.framework, run.world_size, run.num_steps) == ("r", "trl", 2, 2)
    assert stored_run.steps_of(run.path) == job.steps
    ((key, rewards),) = stored_run.scalars_of(run.path, 100).items()
    assert (key, *map(list, rewards)) == ("reward", [1, 2], [0.5, 0.75])
    assert Fact("package", "", "torch", "2.9") in stored_run.facts_of(run.path)


def test_a_step_that_changes_later_is_stored_as_it_is_now(job, new_writer, stored):
    writer = new_writer()
    job.steps = [step_row(1, ranks="0")]
    writer.write()
    job.steps = [step_row(1), step_row(2)]
    writer.write()
    assert steps(stored()) == [(1, 2), (2, 2)]


def test_an_agent_that_starts_again_continues_the_file(job, new_writer, stored):
    job.steps, job.scalars = [step_row(n) for n in range(1, 6)], {5: {"reward": 0.5}}
    new_writer().write()  # killed after this
    # the ring has lost the begin of step 5, and has new steps
    job.steps = [step_row(5, ranks="0"), step_row(6)]
    job.scalars = {5: {"reward": 9.0}, 6: {"reward": 0.6}}
    job.agent = replace(AGENT, begin_seconds=500.0, pid=2)
    new_writer().write()
    run = stored()
    assert steps(run) == [(n, 2) for n in range(1, 7)]
    numbers, values = stored_run.scalars_of(run.path, 100)["reward"]
    assert (list(numbers), list(values)) == ([5, 6], pytest.approx([0.5, 0.6]))
    assert run.num_agent_starts == 2
    assert run.num_missed_steps == 0


def test_a_value_that_arrives_late_is_part_of_the_stored_mean(job, new_writer, stored, monkeypatch):
    store = ScalarStore()
    monkeypatch.setattr(job, "step_scalars", lambda _run, *asked: store.after(*asked))
    for step in range(1, 101):
        store.add("loss", "trainer/0", 0, step, 1.0)
    store.add("accuracy", "trainer/0", 0, 10, 0.5)
    writer = new_writer()
    writer.write()
    store.now_seconds = time.monotonic()
    store.add("loss", "trainer/1", 0, 99, 3.0)
    store.add("accuracy", "trainer/1", 0, 10, 1.0)
    writer.write()
    scalars = stored_run.scalars_of(stored().path, 1000)
    assert scalars["loss"][1].tolist() == [*[1.0] * 98, 2.0, 1.0]
    assert scalars["accuracy"][1].tolist() == [0.75]


def test_steps_that_nobody_stored_are_counted(job, new_writer, stored):
    writer = new_writer()
    job.steps = [step_row(1)]
    writer.write()
    job.steps = [step_row(4)]
    writer.write()
    assert stored().num_missed_steps == 2


def test_a_job_of_the_same_name_with_other_processes_is_another_run(job, new_writer, tmp_path):
    new_writer().write()
    job.set_run(ranks=(rank_row(pid=8),), begin_seconds=300.0)
    new_writer().write()
    assert len(folder.paths(str(tmp_path / "runs"))) == 2


def test_a_job_that_goes_back_to_a_checkpoint_has_both_attempts(job, new_writer, stored):
    writer = new_writer()
    job.steps = [step_row(1), step_row(2)]
    writer.write()
    again = replace(step_row(2), begin_seconds=500.0, end_seconds=501.0)
    job.steps = [again]
    job.set_run(attempt=1)
    writer.write()
    assert [row.step for row in stored_run.steps_of(stored().path)] == [1, 2, 2]


def test_an_incident_has_begin_step_and_end_and_the_run_is_not_green(job, new_writer, stored):
    writer = new_writer()
    job.set_run(incidents=(INCIDENT,), standing=Standing("found", "Rank 1 is slow."))
    writer.write()
    job.set_run(
        incidents=(), past_incidents=(replace(INCIDENT, end_seconds=160.0),), standing=CLEAR
    )
    job.end()
    writer.write()
    run = stored()
    (incident,) = run.incidents
    assert (incident.begin_seconds, incident.step, incident.end_seconds) == (100.0, 3, 160.0)
    assert run.state == "warning"
    assert run.ending == "The run ended at 12:00:00."
    assert run.end_seconds == 200.0


def test_an_incident_that_was_noise_is_not_stored(job, new_writer, stored):
    """The agent drops an incident of a few seconds: it is no past incident either."""
    writer = new_writer()
    job.set_run(incidents=(INCIDENT,))
    writer.write()
    assert stored().state == "warning"
    job.set_run(incidents=())
    writer.write()
    assert (stored().incidents, stored().state) == ((), "clear")


def test_an_alert_ends_when_it_fires_no_more_also_under_the_next_agent(job, new_writer, stored):
    writer = new_writer()
    job.alerts = [ALERT, replace(ALERT, alert="DfxHang")]
    writer.write()
    job.alerts = [ALERT]
    writer.write()
    assert {a.alert: a.end_seconds is None for a in stored().alerts} == {
        "DfxStraggler": True, "DfxHang": False,
    }  # fmt: skip
    job.alerts = []
    new_writer().write()
    assert all(alert.end_seconds is not None for alert in stored().alerts)


def test_a_verdict_is_a_row_for_each_conclusion(job, new_writer, stored):
    writer = new_writer()
    for state, summary in (("clear", "a"), ("clear", "b"), ("found", "c")):
        job.set_run(verdicts=(Verdict("hang", state, "trainer", summary),))
        writer.write()
    with sqlite3.connect(stored().path) as connection:
        rows = connection.execute("SELECT state, summary FROM verdicts ORDER BY id").fetchall()
    assert rows == [("clear", "b"), ("found", "c")]


def test_an_ended_run_is_one_file_that_can_be_copied(job, new_writer, tmp_path):
    writer = new_writer()
    job.steps = [step_row(1)]
    job.end()
    for _ in range(3):
        writer.write()
    (path,) = (tmp_path / "runs").iterdir()
    copy = tmp_path / "copy.sqlite"
    copy.write_bytes(path.read_bytes())
    copy.chmod(0o400)
    assert stored_run.load(str(copy)).num_steps == 1
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_file_of_an_ended_run_is_not_opened_again(job, new_writer, monkeypatch):
    writer = new_writer()
    job.end()
    for _ in range(2):
        writer.write()
    monkeypatch.setattr(recording.RunFile, "open_for", None)
    writer.write()


def test_the_conclusion_about_an_ended_run_is_not_replaced_by_a_later_agent(
    job, new_writer, stored
):
    """A later agent finds some files of dead processes, and judges a part of the run."""
    job.end()
    new_writer().write()
    job.set_run(incidents=(INCIDENT,), ending="The run ended at an unknown time.")
    new_writer().write()
    run = stored()
    assert (run.incidents, run.ending) == ((), "The run ended at 12:00:00.")
    assert run.num_agent_starts == 1


def test_what_a_job_was_started_with_is_read_as_soon_as_it_can_be(job, new_writer, stored):
    facts = []
    writer = new_writer()
    writer._describe = lambda _run, _agent: facts
    writer.write()
    facts.append(Fact("config", "", "--lr", "0.1"))
    writer.write()
    facts[0] = Fact("config", "", "--lr", "other")
    writer.write()
    assert Fact("config", "", "--lr", "0.1") in stored_run.facts_of(stored().path)


def test_a_run_without_an_end_says_so(job, new_writer, stored):
    new_writer().write()
    run = stored()
    assert run.how_it_ended(run.latest_seconds + 5) == "running"
    assert "no end was observed" in run.how_it_ended(run.latest_seconds + 500)


def test_a_full_disk_is_counted_and_reported_once_and_nothing_is_lost(
    job, new_writer, stored, reports, monkeypatch
):
    writer = new_writer()
    job.steps = [step_row(1)]
    writer._guarded_write()
    with monkeypatch.context() as patch:
        patch.setattr(recording.folder, "free_bytes", lambda _path: 0)
        job.steps.append(step_row(2))
        writer._guarded_write()
        writer._guarded_write()
    assert writer.num_failures == 2
    writer._guarded_write()
    assert [bool(report) for report in reports] == [True, False]
    assert "MiB are free" in reports[0]
    assert steps(stored()) == [(1, 2), (2, 2)]


def test_an_agent_that_cannot_read_is_one_line_and_no_traceback(
    job, new_writer, reports, monkeypatch, caplog
):
    writer = new_writer()

    def blind():
        raise BlindError("the reading does not end")

    with monkeypatch.context() as patch:
        patch.setattr(job, "snapshot", blind)
        writer._guarded_write()
    assert reports == [
        "history is not written until the agent reads again: the reading does not end"
    ]
    assert caplog.records == []


def test_a_write_that_fails_in_the_middle_stores_nothing_of_it(
    job, new_writer, stored, reports, monkeypatch
):
    writer = new_writer()
    job.steps = [step_row(1)]
    writer._guarded_write()

    def fail(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(recording.RunFile, "write_run", fail)
        job.steps.append(step_row(2))
        writer._guarded_write()
    assert steps(stored()) == [(1, 2)]
    assert reports == ["history is not written: No space left on device: set history_directory"]
    writer._guarded_write()
    assert steps(stored()) == [(1, 2), (2, 2)]


def test_a_folder_that_cannot_be_made_is_reported(job, new_writer, reports, tmp_path):
    (tmp_path / "file").write_text("no folder")
    writer = new_writer(tmp_path / "file" / "runs")
    writer._guarded_write()
    assert "Not a directory" in reports[0]


def test_a_second_agent_of_a_folder_writes_nothing(job, new_writer, tmp_path):
    job.agent = replace(AGENT, other_agent_pid=3)
    new_writer().write()
    assert not (tmp_path / "runs").exists()


def test_the_thread_writes_a_last_time_when_it_stops(job, new_writer, stored):
    writer = new_writer()
    writer.start()
    job.steps = [step_row(1)]
    assert writer.stop()
    assert stored().num_steps == 1


def test_a_reader_never_sees_half_of_a_file(job, new_writer, stored, monkeypatch):
    """Between its creation and the first write a file names its run and nothing else."""
    writer = new_writer()
    job.steps = [step_row(1)]
    job.end()

    def fail(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(recording.RunFile, "write_steps", fail)
        writer._guarded_write()
    run = stored()
    assert (run.run, run.num_steps, run.ending) == ("r", 0, "")
    writer._guarded_write()
    assert (stored().num_steps, bool(stored().ending)) == (1, True)


def test_a_hub_and_an_agent_on_one_host_have_a_file_each_and_the_name_means_the_hubs(
    job, new_writer, tmp_path
):
    """Each continues its own file, whichever wrote last."""
    of_agent = job.agent
    of_hub = replace(of_agent, nodes=(NodeRow("n", 1.0, 1, 0, 0, "", has_left=False),))
    for begin_seconds in (60.4, 60.6):  # a hub corrects the clock of a node
        job.set_run(ranks=(replace(rank_row(), begin_seconds=begin_seconds),))
        for job.agent in (of_hub, of_agent):
            new_writer().write()
    runs, _ = stored_run.runs_in(str(tmp_path / "runs"))
    found = sorted((run.is_of_hub, run.num_agent_starts) for run in runs)
    assert found == [(False, 1), (True, 1)]  # the second start is that of the same agent
    path = stored_run.path_of("r", str(tmp_path / "runs"))
    assert "r-hub-19700101T000100" in path
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM ranks").fetchone() == (1,)


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "x.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (a)")
    with pytest.raises(schema.HistoryFileError, match="no history of a run"):
        stored_run.load(str(path))
    path.write_bytes(b"not a database, but longer than a header" * 9)
    with pytest.raises(schema.HistoryFileError, match="cannot read"):
        stored_run.load(str(path))


def test_a_run_is_named_by_its_id_or_its_name(job, new_writer, stored, tmp_path):
    new_writer().write()
    run, directory = stored(), str(tmp_path / "runs")
    assert stored_run.path_of("r", directory) == run.path
    assert stored_run.path_of(run.id, directory) == run.path
    assert stored_run.path_of("other", directory) is None

"""Logs of a process that nothing may be brought into, found by what the kernel tells of it."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dfx_agent.attach import passive
from dfx_agent.attach.processes import ProcessTable
from dfx_agent.base import boot_clock

WAITING = "import sys; sys.stdout.write('ready\\n'); sys.stdout.flush(); sys.stdin.read()"
OPENING = "files = [open(n, m) for n, m in zip(sys.argv[1::2], sys.argv[2::2])]"


@contextlib.contextmanager
def running(folder: Path, *words: str, code: str = "", **changes: str):
    """The Process of a Python that has run ``code`` in ``folder`` and waits."""
    env = {name: value for name, value in os.environ.items() if name not in passive.VARIABLES}
    command = [sys.executable, "-c", f"import sys; {code or 'pass'}; {WAITING}", *words]
    with subprocess.Popen(
        command, cwd=folder, env={**env, **changes}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as popen:
        popen.stdout.readline()
        try:
            yield ProcessTable().get(popen.pid)
        finally:
            popen.kill()


def logs(process) -> list[str]:
    return list(passive.find_logs(process).logs)


@pytest.fixture
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("elsewhere")


def test_logs_that_it_has_open_for_writing_come_first_and_what_it_reads_is_no_log(
    tmp_path, elsewhere
):
    data, log = elsewhere / "prompts.jsonl", elsewhere / "metrics.jsonl"
    data.write_text("{}\n")
    words = str(data), "r", str(log), "a", str(elsewhere / "weights.bin"), "w"
    with running(tmp_path, *words, code=OPENING) as process:
        (tmp_path / "later.log").touch()
        assert logs(process) == [str(log), str(tmp_path / "later.log")]


def test_a_file_that_takes_its_output_may_have_any_name(tmp_path):
    redirect = "import os; os.dup2(os.open('nohup.out', os.O_WRONLY | os.O_CREAT), 2)"
    with running(tmp_path, code=redirect) as process:
        assert logs(process) == [str(tmp_path / "nohup.out")]


@pytest.mark.parametrize("variable", passive.VARIABLES)
def test_folders_named_in_its_environment(variable, tmp_path, elsewhere):
    with running(tmp_path, **{variable: str(elsewhere)}) as process:
        (elsewhere / "a" / "b").mkdir(parents=True)
        log = elsewhere / "a" / "b" / "events.out.tfevents.1.host"
        log.touch()
        assert logs(process) == [str(log)]


@pytest.mark.parametrize(
    "words",
    [
        ("--output_dir", "{}"), ("--output-dir={}",), ("trainer.default_local_dir={}",),
        ("--logging_dir", "{}"), ("--log-dir={}",), ("+trainer.log_dir={}",), ("--logdir", "{}"),
    ],
)  # fmt: skip
def test_folders_named_in_its_command_line(words, tmp_path, elsewhere):
    with running(tmp_path, *(word.format(elsewhere) for word in words)) as process:
        (elsewhere / "trainer_state.json").touch()
        assert logs(process) == [str(elsewhere / "trainer_state.json")]


def test_a_path_that_is_not_absolute_is_in_its_working_folder(tmp_path):
    with running(tmp_path, VERL_FILE_LOGGER_PATH="out/metrics.jsonl") as process:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "metrics.jsonl").touch()
        assert logs(process) == [str(tmp_path / "out" / "metrics.jsonl")]


def test_last_first_and_only_what_was_written_since_the_start(tmp_path):
    before, first, second = (tmp_path / f"{name}.jsonl" for name in ("before", "b", "a"))
    before.touch()
    os.utime(before, (1e9, 1e9))
    with running(tmp_path) as process:
        begin = boot_clock.unix_seconds(process.start_ticks)
        for seconds, path in enumerate((first, second)):
            path.touch()
            os.utime(path, (begin + 1 + seconds,) * 2)
        assert logs(process) == [str(second), str(first)]


def test_a_log_that_it_opened_at_once_is_no_older_than_it(tmp_path):
    """Its start and the log's time are both cut to the kernel's ticks."""
    with running(tmp_path) as process:
        tick = boot_clock.SECONDS_PER_TICK
        begin = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + process.start_ticks * tick
        for name, num_ticks in (("at_once", 0.9), ("earlier", 3)):
            path = tmp_path / f"{name}.jsonl"
            path.touch()
            os.utime(path, (begin - num_ticks * tick,) * 2)
        assert logs(process) == [str(tmp_path / "at_once.jsonl")]


def test_one_log_under_several_names_is_one(tmp_path, elsewhere):
    log = elsewhere / "metrics.jsonl"
    with running(tmp_path, str(log), "a", code=OPENING, OUTPUT_DIR=str(elsewhere)) as process:
        os.link(log, tmp_path / "same.jsonl")
        (tmp_path / "link.jsonl").symlink_to(log)
        assert logs(process) == [str(log)]


def test_bounds_are_said(tmp_path, monkeypatch):
    monkeypatch.setattr(passive, "_MAX_ENTRIES", 3)
    monkeypatch.setattr(passive, "_MAX_LOG_BYTES", 9)
    with running(tmp_path) as process:
        for name in "abcd":
            (tmp_path / f"{name}.jsonl").write_text("0123456789" if name == "a" else "")
        (tmp_path / ".hidden").mkdir()
        sight = passive.find_logs(process)
        assert sight.too_large == (str(tmp_path / "a.jsonl"),)
        assert sight.cut == (str(tmp_path),)
        assert len(sight.logs) == 1


def test_what_is_ours_to_read_is_read_and_needs_no_remedy(tmp_path):
    with running(tmp_path) as process:
        sight = passive.find_logs(process)
        assert (sight.unreadable, sight.has_stack, sight.remedy) == ((), True, "")


def test_a_process_that_is_gone_is_seen_as_nothing(tmp_path):
    with running(tmp_path) as process:
        pass
    sight = passive.find_logs(process)
    assert sight.logs == ()
    assert set(sight.unreadable) == {
        passive.OPEN_FILES, passive.ENVIRONMENT, passive.FOLDER
    }  # fmt: skip

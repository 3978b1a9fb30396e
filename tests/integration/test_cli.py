"""The command line as people meet it: help that reads, and one line for every mistake."""

import json
import os
import re
import socket
import subprocess
import sys

import pytest
from live_processes import DFX_AGENT, HERE, job_environment, serving, started, until

from dfx_agent import __version__
from dfx_agent.wire import Identity, SegmentWriter

VERBS = ("demo", "ps", "run", "serve")
OK = [sys.executable, "-c", "import sys; print('job ran'); sys.exit(5)"]

pytestmark = [pytest.mark.usefixtures("dfx_dir"), pytest.mark.smoke]


def cli(*args, env=None, cwd=None):
    return subprocess.run(
        [*DFX_AGENT, *map(str, args)],
        check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60,
        cwd=cwd, env=env or job_environment(),
    )  # fmt: skip


def one_line(ended, code):
    """The only line of an error; checks the exit code and that nothing else was said."""
    assert ended.returncode == code, ended.stderr
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("dfx-agent: ")
    return line


def unobserved(ended):
    """The line about a job that ran all the same, unobserved, with its own exit code."""
    assert (ended.returncode, ended.stdout) == (5, "job ran\n"), ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith("dfx-agent: ")
    assert line.endswith("CMD runs unobserved")
    return line


@pytest.fixture
def listener():
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


# help


def test_help_lists_every_verb():
    text = cli("--help").stdout
    for verb in VERBS:
        assert re.search(rf"^    {verb} +\w", text, re.MULTILINE), verb
    assert "dfx-agent run -- torchrun" in text


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_has_an_example(verb):
    ended = cli(verb, "--help")
    assert ended.returncode == 0
    assert ended.stderr == ""
    example = ended.stdout.partition("example:\n")[2]
    assert example.strip().startswith(f"dfx-agent {verb}")
    assert max(map(len, ended.stdout.splitlines())) <= 100


def test_version():
    assert cli("--version").stdout == f"dfx-agent {__version__}\n"


# wrong use


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "VERB"),
        (["fly"], "fly"),
        (["--fly"], ""),
        (["serve", "--fly"], "--fly"),
        (["run", "--fly", "--", "true"], "--fly"),
        (["demo", "--ranks", "many"], "many"),
        (["demo", "--ranks", "0"], "0"),
        (["demo", "--ranks", "65"], "65"),
        (["ps", "--listen", ":1"], "--listen"),
        (["run"], "no command"),
        (["run", "--"], "no command"),
        (["run", "--listen", "127.0.0.1:0", "--", "no-such-program"], "no-such-program"),
        (["run", "--listen", "127.0.0.1:0", "--", "/etc/passwd"], "/etc/passwd"),
        (["run", "--listen", "nowhere", "--", "true"], "nowhere"),
        (["run", "--listen", "127.0.0.1:99999", "--", "true"], "99999"),
        (["run", "--max-overhead", "much", "--", "true"], "much"),
        (["serve", "--config", "/no/such/file.yaml"], "/no/such/file.yaml"),
        (["serve", "--token-file", "/no/such/token"], "/no/such/token"),
    ],
    ids=" ".join,
)
def test_wrong_use_is_one_line_and_exit_code_2(args, says):
    ended = cli(*args)
    lines = [line for line in ended.stderr.splitlines() if "page http" not in line]
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == ""
    assert len(lines) == 1, ended.stderr
    assert lines[0].startswith("dfx-agent: ")
    assert says in lines[0]


WITHOUT_TORCH = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name == "torch" else find(name, *rest)
"""


def test_the_demo_prints_a_short_line_a_step_and_ends_with_what_was_seen(free_port, tmp_path):
    pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")
    listen = f"127.0.0.1:{free_port()}"
    command = ("demo", "--ranks", "1", "--steps", "2", "--exit", "--no-browser", "--listen", listen)
    ended = subprocess.run(
        [*DFX_AGENT, *command], check=False, capture_output=True, text=True, timeout=300,
        stdin=subprocess.DEVNULL, env=job_environment(TMPDIR=str(tmp_path)),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    first, *lines, seen, written, next_step = ended.stdout.splitlines()
    assert first.startswith(f"dfx-agent: page http://{listen}/")
    steps = [line for line in lines if line.startswith("step ")]
    assert [line.split()[1] for line in steps] == ["1/2", "2/2"]
    assert all(len(line) < 100 for line in steps)
    assert seen.startswith("dfx-agent: seen: The run ended normally")
    (report,) = tmp_path.glob("demo-*.html")
    assert written == f"dfx-agent: report {report}  page http://{listen}/ (ends now)"
    assert "attach --pid" in next_step


def test_demo_without_torch_says_what_to_install():
    command = [DFX_AGENT[0], "-c", WITHOUT_TORCH + DFX_AGENT[2], "demo", "--no-browser"]
    ended = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=60, env=job_environment()
    )
    assert "pip install 'dfx-agent[demo]'" in one_line(ended, 2)


def test_fault_that_does_not_exist_is_one_line():
    ended = cli("demo", "--no-browser", "--exit", "--ranks", "1", "--fault", "gremlins")
    line = one_line(ended, 2)
    assert "gremlins" in line
    assert "straggler:RANK:FACTOR" in line


# addresses


@pytest.mark.parametrize("verb", ["serve", "demo"])
def test_taken_port_that_was_asked_for_is_one_line(listener, verb):
    line = one_line(cli(verb, "--listen", f"127.0.0.1:{listener}"), 1)
    assert f"127.0.0.1:{listener}" in line
    assert "--listen" in line


@pytest.mark.parametrize("is_flag", [True, False])
def test_taken_port_is_reported_and_another_is_used(listener, is_flag):
    address = f"127.0.0.1:{listener}"
    flags = ["--listen", address] if is_flag else []
    ended = cli("run", *flags, "--", *OK, env=job_environment(DFX_LISTEN=address))
    assert (ended.returncode, ended.stdout) == (5, "job ran\n"), ended.stderr
    taken, page = ended.stderr.splitlines()
    other = re.search(r"page http://127\.0\.0\.1:(\d+)/", page).group(1)
    assert taken.startswith(f"dfx-agent: cannot listen on 127.0.0.1:{listener}")
    assert f"taking http://127.0.0.1:{other}" in taken
    assert other != str(listener)


def test_other_machines_need_a_token():
    assert "--token-file" in one_line(cli("serve", "--listen", "0.0.0.0:0"), 2)


def test_empty_token_is_refused(tmp_path):
    (tmp_path / "token").write_text("\n")
    ended = cli("serve", "--listen", "0.0.0.0:0", "--token-file", tmp_path / "token")
    assert "empty" in one_line(ended, 2)


# whatever keeps the agent from starting, the job runs

BREAKS = """
import sys
from importlib.machinery import PathFinder
find = PathFinder.find_spec
def find_spec(name, *rest):
    if name == BROKEN:
        raise ImportError(f"{name} is broken here\\nand says so in two lines")
    return find(name, *rest)
PathFinder.find_spec = find_spec
"""


@pytest.mark.parametrize("broken", ["yaml", "fastapi", "uvicorn", "prometheus_client", "pydantic"])
def test_a_dependency_that_cannot_be_imported(broken):
    code = BREAKS.replace("BROKEN", repr(broken)) + DFX_AGENT[2]
    ended = subprocess.run(
        [sys.executable, "-c", code, "run", "--listen", "127.0.0.1:0", "--", *OK],
        check=False, capture_output=True, text=True, timeout=60, env=job_environment(),
    )  # fmt: skip
    assert f"ImportError: {broken} is broken here; CMD" in unobserved(ended)


@pytest.mark.parametrize(
    ("content", "args", "says"),
    [
        ("poll_second: 1\n", [], "poll_second"),
        ("a: {", [], "YAML"),
        ("", ["--token-file", "/no/such/token"], "/no/such/token"),
        ("", ["--listen", "0.0.0.0:0"], "--token-file"),
        ("", ["--listen", "192.0.2.1:9931"], "192.0.2.1"),
        ("", ["--tls-cert", "/no/such/cert"], ""),
        ("track_with: [nobody]\n", [], "nobody"),
        ("", ["--otlp", "nowhere"], "nowhere"),
        ("", ["--config", "/no/such/file"], "/no/such/file"),
    ],
)
def test_settings_that_cannot_be_used(tmp_path, content, args, says):
    (tmp_path / "dfx.yaml").write_text(content)
    environment = job_environment(DFX_LISTEN="127.0.0.1:0")
    assert says in unobserved(cli("run", *args, "--", *OK, cwd=tmp_path, env=environment))


# the folder of the segments


@pytest.fixture
def below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    return str(tmp_path / "file" / "dfx")


@pytest.fixture
def shared_folder(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    return str(folder)


def test_folder_that_cannot_be_made(below_a_file):
    environment = job_environment(DFX_DIR=below_a_file)
    line = unobserved(cli("run", "--listen", "127.0.0.1:0", "--", *OK, env=environment))
    assert below_a_file in line
    assert "DFX_DIR" in line
    assert below_a_file in one_line(cli("serve", "--listen", "127.0.0.1:0", env=environment), 1)
    assert below_a_file in one_line(cli("ps", env=environment), 1)


def test_folder_that_others_can_write(shared_folder):
    environment = job_environment(DFX_DIR=shared_folder)
    line = unobserved(cli("run", "--listen", "127.0.0.1:0", "--", *OK, env=environment))
    assert shared_folder in line
    assert "chmod go-w" in line
    assert shared_folder in one_line(cli("serve", "--listen", "127.0.0.1:0", env=environment), 1)


def test_folder_that_the_guest_cannot_use_is_one_line_in_the_job(below_a_file):
    body = "import dfx_agent.shim as dfx; dfx.init(); dfx.set_step(1); print('job ran')"
    environment = job_environment(DFX_DIR=below_a_file, PYTHONPATH=str(HERE.parents[1]))
    ended = subprocess.run(
        [sys.executable, "-c", body],
        check=True, capture_output=True, text=True, timeout=60, env=environment,
    )  # fmt: skip
    assert ended.stdout == "job ran\n"
    (line,) = ended.stderr.splitlines()
    assert line.startswith("dfx-agent: ")
    assert "this process runs unobserved" in line


def test_folder_on_a_read_only_mount(tmp_path):
    if os.getuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("mounting needs root")
    script = 'mount -t tmpfs -o ro tmpfs "$0" && exec "$@"'
    folder = tmp_path / "ro"
    folder.mkdir()
    ended = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, folder, *DFX_AGENT,
         "run", "--listen", "127.0.0.1:0", "--", *OK],
        check=False, capture_output=True, text=True, timeout=60,
        env=job_environment(DFX_DIR=str(folder / "dfx")),
    )  # fmt: skip
    assert "Read-only file system" in unobserved(ended)


# settings


def test_unknown_key_in_the_file_is_named(tmp_path):
    (tmp_path / "dfx.yaml").write_text("poll_second: 1\n")
    line = one_line(cli("serve", "--listen", "127.0.0.1:0", cwd=tmp_path), 2)
    assert "'poll_second'" in line
    assert "dfx.yaml" in line
    assert "poll_seconds" in line


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("poll_seconds: soon", "poll_seconds"),
        ("poll_seconds: -1", "positive"),
        ("[1, 2]", "mapping"),
        ("a: {", "YAML"),
    ],
)
def test_bad_file_is_one_line(tmp_path, content, says):
    (tmp_path / "dfx.yaml").write_text(content)
    assert says in one_line(cli("ps", cwd=tmp_path), 2)


def test_unknown_variable_is_named():
    line = one_line(cli("ps", env=job_environment(DFX_LISTENN=":1")), 2)
    assert "'listenn'" in line
    assert "DFX_LISTENN" in line


# ps


def test_ps_without_runs(dfx_dir):
    ended = cli("ps")
    assert ended.returncode == 0
    assert " ".join(ended.stdout.split()) == (
        f"no observed process in {dfx_dir}; start one: dfx-agent run -- CMD ..."
    )
    assert json.loads(cli("ps", "--json").stdout)["runs"] == []


def rank_loop(tmp_path, rank):
    environment = job_environment(
        RANK=str(rank), WORLD_SIZE="2", DFX_RUN="nightly", PYTHONPATH=str(HERE.parents[1])
    )
    return started([sys.executable, str(HERE / "rank_loop.py")], tmp_path, environment)


def test_ps_shows_ranks_without_an_agent_and_removes_nothing(dfx_dir, tmp_path):
    with rank_loop(tmp_path, 0) as zero, rank_loop(tmp_path, 1) as one:
        until(lambda: "step 3" in zero.output and "step 3" in one.output, "steps")
        shown = json.loads(cli("ps", "--json").stdout)
        table = cli("ps", env=job_environment(COLUMNS="120")).stdout
        one.send(9)
        one.wait()
        after = json.loads(cli("ps", "--json").stdout)
        assert len(list(dfx_dir.glob("*.seg"))) == 2
    (row,) = shown["runs"]
    assert row["run"] == "nightly"
    assert [(r["rank"], r["pid"], r["state"]) for r in row["ranks"]] == [
        ("0", zero.pid, "live"),
        ("1", one.pid, "live"),
    ]
    assert all(r["step"] >= 3 for r in row["ranks"])
    assert re.search(
        rf"^nightly +trainer +1 +{one.pid} +live +\d+ +stage|wait", table, re.MULTILINE
    )
    assert [r["state"] for r in after["runs"][0]["ranks"]] == ["live", "died"]


def test_ps_shows_names_as_they_are(dfx_dir):
    SegmentWriter(str(dfx_dir), Identity(run="[/x] [red]nightly", role="trainer", rank=0)).close()
    ended = cli("ps", env=job_environment(COLUMNS="120"))
    assert ended.returncode == 0, ended.stderr
    assert "[/x] [red]nightly  trainer" in ended.stdout


def test_ps_next_to_an_agent(tmp_path, free_port):
    with serving(tmp_path, free_port()) as agent, rank_loop(tmp_path, 0):
        until(agent.ranks, "the agent shows the rank")
        assert list(json.loads(cli("ps", "--json").stdout)["runs"][0]["ranks"][0]["rank"]) == ["0"]
        assert agent.snapshot()["agent"]["other_agent_pid"] is None


@pytest.mark.parametrize("args", [["ps"], ["ps", "--json"], ["--help"]], ids=" ".join)
def test_reader_that_went_away_is_no_error(args):
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [*DFX_AGENT, *args],
        check=False, stdout=writer, stderr=subprocess.PIPE, timeout=60, env=job_environment(),
    )  # fmt: skip
    os.close(writer)
    assert ended.stderr == b""

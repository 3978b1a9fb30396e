"""``dfx-agent run -- CMD`` is transparent to the job, and every Python in it carries the guest."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from live_processes import DFX_AGENT, HERE, ROOT, TORCHRUN, job_environment, started, until

PYENV = Path.home() / ".pyenv" / "versions"
RUN = [*DFX_AGENT, "run", "--listen", "127.0.0.1:0", "--"]
HAS_GUEST = "import sys; print('dfx_agent.shim' in sys.modules)"
RECORD = "import dfx_agent.shim as dfx, os\nwith dfx.stage('rollout'): pass\n"
COUNT = "print(sum(n.endswith('.seg') for n in os.listdir(os.environ['DFX_DIR'])))"

pytestmark = pytest.mark.usefixtures("dfx_dir")


def run(*command, **options):
    options.setdefault("env", job_environment())
    if "input" not in options:
        options["stdin"] = subprocess.DEVNULL
    return subprocess.run(
        [*RUN, *command], check=False, capture_output=True, text=True, timeout=180, **options
    )


def make_venv(folder):
    """An interpreter that has the standard library and nothing of ours."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    return str(make_venv(tmp_path_factory.mktemp("bare") / "venv"))


def interpreters(wanted):
    """pyenv's Pythons whose (major, minor) ``wanted`` accepts, as pytest parameters."""
    found = {}
    for path in sorted(PYENV.glob("*/bin/python")):
        words = path.parent.parent.name.split(".")
        if len(words) >= 2 and all(word.isdigit() for word in words[:2]):
            found[int(words[0]), int(words[1])] = path
    paths = [str(path) for version, path in sorted(found.items()) if wanted(version)]
    absent = pytest.param(None, marks=pytest.mark.skip(reason=f"no such Python in {PYENV}"))
    return [pytest.param(p, id=Path(p).parent.parent.name) for p in paths] or [absent]


# exit codes, signals, terminal


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("sys.exit(0)", 0),
        ("sys.exit(3)", 3),
        ("raise RuntimeError", 1),
        ("os.kill(os.getpid(), 9)", 128 + 9),
        ("os.kill(os.getpid(), 15)", 128 + 15),
        ("os.kill(os.getpid(), 11)", 128 + 11),
    ],
)
def test_exit_code_is_the_jobs(bare_python, ending, code):
    assert run(bare_python, "-c", f"import os, sys; {ending}").returncode == code


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP"])
def test_signal_to_us_reaches_the_job_once(bare_python, tmp_path, name):
    with started([*RUN, bare_python, str(HERE / "signal_counter.py")], tmp_path) as job:
        until(lambda: "ready" in job.output, "job is ready")
        job.send(getattr(signal, name))
        code = job.wait(120)
        assert f"counted {{'{name}': 1}}" in job.output
        assert code == 7


class Terminal:
    """A program in the foreground of a terminal of its own."""

    def __init__(self, command):
        self.shown = ""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execve(command[0], command, job_environment())

    def type(self, text):
        os.write(self._fd, text.encode())

    def read_until(self, text, seconds=120.0):
        deadline = time.monotonic() + seconds
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            if select.select([self._fd], [], [], 0.1)[0]:
                self.shown += self._read()

    def _read(self):
        try:
            return os.read(self._fd, 4096).decode()
        except OSError:  # Linux says so when the program has gone
            pytest.fail(f"the program ended: {self.shown}")

    def wait(self):
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self):
        os.close(self._fd)


def test_ctrl_c_in_a_terminal_reaches_the_job_once(bare_python):
    terminal = Terminal([*RUN, bare_python, str(HERE / "signal_counter.py")])
    try:
        terminal.read_until("ready True True")
        terminal.type("\x03")
        terminal.read_until("counted {'SIGINT': 1}")
        assert terminal.wait() == 7
    finally:
        terminal.close()


def test_job_reads_the_terminal(bare_python):
    terminal = Terminal([*RUN, bare_python, "-c", "print('got', input('name? ').upper())"])
    try:
        terminal.read_until("name? ")
        terminal.type("ada\n")
        terminal.read_until("got ADA")
        assert terminal.wait() == 0
    finally:
        terminal.close()


@pytest.mark.smoke
def test_stdin_and_stdout_are_the_jobs_byte_for_byte():
    ended = run("cat", input="one\ntwo\n\n")
    assert (ended.returncode, ended.stdout) == (0, "one\ntwo\n\n")
    lines = ended.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("dfx-agent: page http://127.0.0.1:")


def test_job_continues_when_the_agent_is_killed(bare_python, tmp_path):
    go, done = tmp_path / "go", tmp_path / "done"
    body = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)\n{RECORD}"
    body = f"print('ready', flush=True)\n{body}open({str(done)!r}, 'w').write('done')"
    with started([*RUN, bare_python, "-c", body], tmp_path) as job:
        until(lambda: "ready" in job.output, "job is ready")
        job.send(signal.SIGKILL)
        job.wait()
        go.touch()
        until(done.exists, "the job's own work goes on")


# where the guest is


def test_guest_is_in_every_python_of_the_job(bare_python, free_port):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [*DFX_AGENT, "run", "--run", "fam", "--listen", f"127.0.0.1:{port}", "--"]
    ended = subprocess.run(
        [*command, bare_python, HERE / "family.py", "all", url],
        check=False, capture_output=True, text=True, timeout=180, env=job_environment(),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    shown = json.loads(ended.stdout)
    command = shown.pop("command")
    assert command == [["fam", "live"]]
    ways = ("subprocess", "exec", "dash_c", "dash_m", "fork", "mp_fork", "mp_spawn")
    assert shown == {way: [["fam", "exited"]] for way in (*ways, "mp_forkserver")}
    assert len(ended.stderr.splitlines()) == 1, ended.stderr


@pytest.mark.smoke
def test_guest_is_in_torchrun_workers(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(
        f"{RECORD}from dfx_agent.shim import recorder\n"
        "who = recorder.current.identity\n"
        "open(f'worker-{who.rank}', 'w')"
        ".write(f'{who.run} {who.role} {who.rank} {who.local_rank} {who.world_size}')\n"
    )
    ended = run(*TORCHRUN, "2", script, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    for rank in (0, 1):
        run_name, *rest = (tmp_path / f"worker-{rank}").read_text().split()
        assert run_name.startswith("worker-")
        assert rest == ["trainer", str(rank), str(rank), "2"]


@pytest.mark.parametrize("python", interpreters(lambda version: version >= (3, 10)))
def test_guest_is_in_any_python_from_3_10_on(python):
    body = f"{RECORD}from dfx_agent.shim import recorder\nprint(recorder.current is not None)"
    ended = run(python, "-c", body)
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr
    assert len(ended.stderr.splitlines()) == 1, ended.stderr


@pytest.mark.parametrize("python", interpreters(lambda version: version < (3, 10)))
def test_older_pythons_run_undisturbed(python, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys\nsys.own_customize_ran = True\n")
    body = "import sys; print('%s %s' % (sys.own_customize_ran, 'dfx_agent' in sys.modules))"
    ended = run(python, "-c", body, env=job_environment(PYTHONPATH=str(own)))
    assert (ended.returncode, ended.stdout) == (0, "True False\n"), ended.stderr
    assert len(ended.stderr.splitlines()) == 1, ended.stderr


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_isolated_pythons_are_left_alone(bare_python, option):
    # they ignore PYTHONPATH, so only an installed .pth can arm them
    ended = run(bare_python, option, "-c", HAS_GUEST)
    assert (ended.returncode, ended.stdout) == (0, "False\n"), ended.stderr


def test_own_sitecustomize_runs_too(bare_python, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.own = __file__\n")
    body = f"{HAS_GUEST}; print(sys.own); import sitecustomize; print(sitecustomize.__file__)"
    ended = run(bare_python, "-c", body, env=job_environment(PYTHONPATH=str(tmp_path)))
    own = str(tmp_path / "sitecustomize.py")
    assert ended.stdout.splitlines() == ["True", own, own], ended.stderr


def test_error_in_own_sitecustomize_is_printed_as_without_the_guest(bare_python, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('mine')\n")
    environment = job_environment(PYTHONPATH=str(tmp_path))
    ended = run(bare_python, "-c", HAS_GUEST, env=environment)
    assert (ended.returncode, ended.stdout) == (0, "True\n")
    assert "ValueError: mine" in ended.stderr


def test_nested_runs_do_not_grow_pythonpath(bare_python, tmp_path):
    body = "import os; print(os.environ['PYTHONPATH'])"
    environment = job_environment(PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    once = run(bare_python, "-c", body, env=environment)
    twice = run(*RUN, bare_python, "-c", body, env=environment)
    assert twice.returncode == 0, twice.stderr
    assert twice.stdout == once.stdout
    first, *rest = once.stdout.strip().split(os.pathsep)
    assert Path(first).name.startswith("preload-")
    assert rest == [str(tmp_path), str(ROOT)]


def test_preload_leaves_only_the_guest_on_sys_path(bare_python):
    ended = run(bare_python, "-c", "import sys; print([p for p in sys.path if 'preload' in p])")
    (entry,) = json.loads(ended.stdout.replace("'", '"'))
    assert entry.endswith("/guest")


def test_process_that_records_nothing_makes_no_segment(bare_python):
    quiet = run(bare_python, "-c", f"import os; import dfx_agent.shim; {COUNT}")
    assert (quiet.returncode, quiet.stdout) == (0, "0\n"), quiet.stderr
    loud = run(bare_python, "-c", f"{RECORD}{COUNT}")
    assert loud.stdout == "1\n", loud.stderr


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["train.py", "--lr", "1e-6"], "train-"),
        (["-m", "pkg.train"], "train-"),
        (["-m", "torch.distributed.run", "--nproc-per-node", "8", "/x/train.py"], "train-"),
        (["-m", "torch.distributed.run", "--standalone", "-m", "pkg.train"], "train-"),
        ([], "echo-"),
    ],
)
def test_run_is_named_after_the_script(words, name):
    ended = run("echo", *words)
    assert f"  run {name}" in ended.stderr


def test_run_name_is_what_was_given(bare_python):
    command = [*RUN[:-1], "--run", "nightly", "--", bare_python, "-c"]
    body = "import os; print(os.environ['DFX_RUN'])"
    named = subprocess.run([*command, body], check=True, capture_output=True, timeout=180)
    assert named.stdout == b"nightly\n"


# installed, and enabled by DFX_AGENT=1


@pytest.fixture(scope="module")
def installed_python(tmp_path_factory):
    """As after ``pip install dfx-agent``: the package on the path, its .pth beside it."""
    python = make_venv(tmp_path_factory.mktemp("installed") / "venv")
    (site,) = (python.parent.parent / "lib").glob("python*/site-packages")
    (site / "a_source.pth").write_text(f"{ROOT}\n")
    (site / "dfx_agent.pth").write_bytes((ROOT / "dfx_agent/attach/dfx_agent.pth").read_bytes())
    return str(python)


@pytest.mark.parametrize("options", [[], ["-I"], ["-E"]])
def test_installed_pth_arms_when_enabled(installed_python, dfx_dir, options):
    environment = job_environment(DFX_AGENT="1")
    command = [installed_python, *options, "-c", RECORD]
    subprocess.run(command, check=True, env=environment, timeout=180)
    assert len(list(dfx_dir.glob("*.seg"))) == 1


@pytest.mark.parametrize("value", [None, "", "0"])
def test_installed_pth_does_nothing_when_not_enabled(installed_python, dfx_dir, value):
    environment = job_environment(**({} if value is None else {"DFX_AGENT": value}))
    body = f"import sys; print([m for m in sys.modules if 'dfx' in m])\n{RECORD}"
    ended = subprocess.run(
        [installed_python, "-c", body],
        check=True, capture_output=True, text=True, env=environment, timeout=180,
    )  # fmt: skip
    assert ended.stdout == "[]\n"
    assert ended.stderr == ""
    assert list(dfx_dir.glob("*.seg")) == []


def test_installed_guest_under_run_starts_once(installed_python):
    ended = run(installed_python, "-c", f"{RECORD}{COUNT}")
    assert (ended.returncode, ended.stdout) == (0, "1\n"), ended.stderr


@pytest.mark.smoke
def test_a_crash_is_reported_when_the_job_has_ended(dfx_dir):
    job = f"{RECORD}dfx.set_step(3)\nos.kill(os.getpid(), 9)"
    env = job_environment(RANK="0", WORLD_SIZE="1")
    ended = run(sys.executable, "-c", job, env=env)
    assert ended.returncode == 128 + signal.SIGKILL
    (reported,) = (line for line in ended.stderr.splitlines() if "crash found:" in line)
    assert reported.startswith("dfx-agent: crash found: Rank 0 was killed by signal 9 (SIGKILL)")
    (file,) = (Path(dfx_dir) / "evidence").glob("*-crash.json")
    assert reported.endswith(f"Evidence: dfx-agent report FILE.html --evidence {file}")


def test_a_normal_end_has_no_finding():
    assert "found" not in run(sys.executable, "-c", RECORD).stderr

"""``dfx-agent export``: the steps of a live job, from its agent and from its segments alone."""

import gzip
import json
import sys

import pytest
from live_processes import HERE, ROOT, job_environment, serving, started, until, unused_port


@pytest.fixture
def job(dfx_dir, tmp_path):
    known = {"DFX_RUN": "a/b", "RANK": "0", "WORLD_SIZE": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(HERE / "rank_loop.py")]
    with started(command, tmp_path, job_environment(**known)) as process:
        until(lambda: "step 6" in process.output, "some steps")
        yield process


def names_of(file):
    data = file.read_bytes()
    document = json.loads(gzip.decompress(data) if file.suffix == ".gz" else data)
    assert document["otherData"]["run"] == "a/b"
    return [e["name"] for e in document["traceEvents"] if e["ph"] == "X"]


@pytest.mark.smoke
def test_from_the_agent_that_follows_the_folder(job, run_cli, tmp_path):
    with serving(tmp_path, unused_port()) as agent:
        until(lambda: (agent.ranks()["0"]["step"] or 0) > 4, "steps are seen")
        file = tmp_path / "trace.json.gz"
        done = run_cli("export", str(file), "--steps", "3")
    assert done.returncode == 0, done.stderr
    names = names_of(file)
    steps = [name for name in names if name.startswith("step ")]
    assert len(steps) in (3, 4)  # and the one that goes on
    assert {"rollout", "actor_update", "wait barrier"} <= set(names)
    which = f"steps {steps[0].split()[1]} to {steps[-1].split()[1]}"
    assert done.stdout == f"dfx-agent: wrote {file}: {which}, rank 0, run a/b\n"


def test_from_the_segments_when_there_is_no_agent(job, run_cli, tmp_path):
    done = run_cli("export", str(tmp_path / "trace.json"))
    assert done.returncode == 0, done.stderr
    assert names_of(tmp_path / "trace.json").count("rollout") >= 5


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        (("--steps", "0"), 2, "--steps 0: use 1 to 200"),
        (("--run", "x"), 2, "no run named x: there are: none"),
        ((), 1, "no observed process"),
        (("--url", "http://127.0.0.1:1"), 2, "no timeline: http://127.0.0.1:1 does not answer"),
    ],
)
def test_what_cannot_be_written_is_said_in_one_line(dfx_dir, run_cli, tmp_path, more, code, says):
    done = run_cli("export", str(tmp_path / "t.json"), *more)
    assert done.returncode == code
    (line,) = done.stderr.splitlines()
    assert says in line
    assert not (tmp_path / "t.json").exists()


def test_a_folder_that_is_not_there_is_said(job, run_cli, tmp_path):
    done = run_cli("export", str(tmp_path / "none" / "t.json"))
    assert done.returncode == 1
    assert "cannot write" in done.stderr

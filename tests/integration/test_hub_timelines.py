"""What is opened at a hub: timelines from the nodes, curves, and where a node cannot be asked."""

import json
import sqlite3
import subprocess
import sys
import urllib.parse
from contextlib import ExitStack, closing, contextmanager

import pytest
from hub import hub, join_state, joined
from live_processes import DFX_AGENT, HERE, ROOT, job_environment, started, until, unused_port

STEPS = "/api/v1/runs/two/timeline?steps=4"


@contextmanager
def rank(folder, segments, number):
    """One of two, which marks steps until it is killed."""
    known = {"DFX_RUN": "two", "RANK": str(number), "WORLD_SIZE": "2", "PYTHONPATH": str(ROOT)}
    known |= {"DFX_DIR": str(segments), "DFX_NODE": f"node-{number}"}
    command = [sys.executable, str(HERE / "rank_loop.py")]
    with started(command, folder, job_environment(**known)) as process:
        yield process


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """(hub, agents) of a job of two ranks on two nodes."""
    folder, port = tmp_path_factory.mktemp("job"), unused_port()
    (folder / "token").write_text("abc\n")
    with ExitStack() as stack:
        stored = {"DFX_HISTORY_DIRECTORY": str(folder / "history")}
        the_hub = stack.enter_context(hub(folder, port, **stored))
        agents = []
        for number in (0, 1):
            known = {"DFX_NODE": f"node-{number}"}
            segments = folder / str(number)
            agents.append(stack.enter_context(joined(folder, segments, port, **known)))
            stack.enter_context(rank(folder, segments, number))
        for agent in agents:
            until(lambda agent=agent: join_state(agent) == "joined", "joined")
        until(lambda: sorted(the_hub.ranks()) == ["0", "1"], "both ranks on the hub")
        yield the_hub, agents


def told(the_hub, *ranks):
    query = "".join(f"&rank={urllib.parse.quote(name)}" for name in ranks)
    return the_hub.json(STEPS + query)


def test_the_hub_shows_the_spans_of_all_nodes(job):
    the_hub, _ = job

    def both():
        rows = told(the_hub)
        return rows if {row["rank"] for row in rows} == {"0", "1"} else None

    rows = until(both, "a timeline of both")
    names = {piece["name"] for row in rows for piece in row["pieces"]}
    assert {"rollout", "actor_update", "barrier"} <= names
    (role,) = {row["role"] for row in rows}
    assert {row["rank"] for row in told(the_hub, f"{role}/1")} == {"1"}
    assert all(row["timeline_problem"] == "" for row in the_hub.nodes().values())


def test_the_hub_shows_curves(job):
    the_hub, _ = job
    scalars = until(lambda: the_hub.snapshot()["runs"][0]["scalars"], "numbers")
    assert {row["metric"] for row in scalars} >= {"dfx_reward", "dfx_actor_entropy_nats"}
    (history,) = the_hub.json("/api/v1/runs/two/scalars?key=actor/entropy")
    assert set(history["values"]) == {2.0}


def test_the_hub_stores_the_history_of_all_nodes(job):
    the_hub, _ = job

    def asked(run, query):
        with closing(sqlite3.connect(run["path"])) as connection:
            return connection.execute(query).fetchall()

    def stored():
        """The run, once it has a step of both ranks."""
        for run in the_hub.json("/api/v1/history"):
            if ('["0", "1"]',) in asked(run, "SELECT ranks FROM schemas"):
                return run
        return None

    run = until(stored, "a step of both ranks in the history of the hub")
    assert (run["run"], run["world_size"], run["is_of_hub"]) == ("two", 2, True)
    nodes = asked(run, "SELECT node, rank FROM ranks ORDER BY node")
    assert nodes == [("node-0", "0"), ("node-1", "1")]
    page = the_hub.get("/history")
    assert run["id"] in page
    assert "two</a> (all nodes)" in page


def says(*words):
    """What a verb prints, in one line."""
    done = subprocess.run([*DFX_AGENT, *words], capture_output=True, text=True, check=False)
    return " ".join((done.stdout + done.stderr).split())


def test_a_node_says_that_it_sees_a_part(job):
    the_hub, agents = job
    (run,) = agents[1].snapshot()["runs"]
    assert run["part"] == "Of this node only: 1 of 2 ranks are observed."
    assert the_hub.snapshot()["runs"][0]["part"] == ""
    result = says("diagnose", "--url", agents[1].url)
    assert f"The hub {the_hub.url} judges the whole job." in result
    assert "node-1" in says("ps", "--url", the_hub.url)


def test_a_trace_of_all_nodes_is_written(job, tmp_path):
    the_hub, _ = job
    file = tmp_path / "trace.json"
    assert "wrote" in says("export", str(file), "--url", the_hub.url, "--steps", "3")
    events = json.loads(file.read_text())["traceEvents"]
    named = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    ranks = {name.rpartition(" rank ")[2] for name in named if " rank " in name}
    assert ranks == {"0", "1"}
    assert len(named) == 3, "the run itself has incidents and counters"


def test_a_node_that_cannot_be_asked_is_left_out_and_named(tmp_path):
    """Its agent wants another token than the hub's."""
    port = unused_port()
    for name in ("right", "other"):
        (tmp_path / name).write_text(f"{name}\n")
    token = {"DFX_HUB_TOKEN_FILE": str(tmp_path / "right")}
    with ExitStack() as stack:
        words = ("--token-file", str(tmp_path / "right"))
        the_hub = stack.enter_context(hub(tmp_path, port, *words))
        other = token | {"DFX_TOKEN_FILE": str(tmp_path / "other"), "DFX_NODE": "node-0"}
        stack.enter_context(joined(tmp_path, tmp_path / "a", port, **other))
        stack.enter_context(rank(tmp_path, tmp_path / "a", 0))

        def seen():
            return the_hub.json("/api/v1/snapshot?token=right")

        until(lambda: any(run["ranks"] for run in seen()["runs"]), "its rank on the hub")
        assert the_hub.json(f"{STEPS}&token=right") == []
        (node,) = seen()["agent"]["nodes"]
        problem = node["timeline_problem"]
        assert problem == "its agent takes another token than this hub: give both the same"

"""Agents join a hub: real processes, OTLP over real HTTP."""

import gzip
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager

import pytest
from alert_receivers import alertmanager, hooked
from hub import hub, join_state, joined
from live_processes import DFX_AGENT, HERE, ROOT, job_environment, started, until, unused_port

OTLP = {"Content-Type": "application/x-protobuf"}


@contextmanager
def rank(folder, segments, num_steps="100000"):
    """A process that marks steps until it is killed."""
    known = {"DFX_RUN": "r", "RANK": "0", "WORLD_SIZE": "1", "PYTHONPATH": str(ROOT)}
    known |= {"DFX_DIR": str(segments)}
    command = [sys.executable, str(HERE / "rank_loop.py"), num_steps]
    with started(command, folder, job_environment(**known)) as process:
        yield process


def posted(url, body, headers=OTLP):
    """The status of the answer."""
    request = urllib.request.Request(f"{url}/v1/logs", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


def snapshot_by_token(url, token):
    with urllib.request.urlopen(f"{url}/api/v1/snapshot?token={token}", timeout=30) as answer:
        return json.load(answer)


def lost_row(agent):
    row = agent.snapshot()["agent"]["hub"]
    return row if row["num_lost"] else None


def said(process, text):
    return process.errors.count(text)


def test_a_node_sends_its_hub_what_it_sees(tmp_path):
    port = unused_port()
    with ExitStack() as stack:
        the_hub = stack.enter_context(hub(tmp_path, port))
        agent = stack.enter_context(joined(tmp_path, tmp_path / "a", port))
        stack.enter_context(rank(tmp_path, tmp_path / "a"))
        until(lambda: join_state(agent) == "joined", "joined")
        until(lambda: the_hub.num_taken() >= 2, "two documents")
        until(lambda: list(the_hub.ranks()) == ["0"], "its rank on the hub")
        (node,) = the_hub.nodes().values()
        assert (node["num_refused"], node["num_missed"], node["message"]) == (0, 0, "")
        assert not node["has_left"]
        assert said(agent.process, "joined the hub") == 1
        agent.process.send(signal.SIGTERM)
        assert agent.process.wait() == 0
        until(lambda: all(row["has_left"] for row in the_hub.nodes().values()), "goodbye")
        assert the_hub.json("/api/v1/targets") == []


def test_a_hub_shows_of_a_rank_what_its_node_shows(tmp_path):
    port = unused_port()
    with ExitStack() as stack:
        the_hub = stack.enter_context(hub(tmp_path, port))
        agent = stack.enter_context(joined(tmp_path, tmp_path / "a", port))
        stack.enter_context(rank(tmp_path, tmp_path / "a"))
        until(lambda: list(the_hub.ranks()) == ["0"], "its rank on the hub")
        (role,) = {row["role"] for row in agent.snapshot()["runs"][0]["ranks"]}
        path = f"/api/v1/runs/r/ranks?rank={role}/0"
        until(lambda: the_hub.json(path)[0]["stamps"], "its full row")
        (on_node,), (on_hub,) = agent.json(path), the_hub.json(path)
        assert on_hub.keys() == on_node.keys()
        assert {row["stage"] for row in on_hub["stamps"]} == {"rollout", "actor_update"}
        assert on_hub["scalars"][0].keys() == on_node["scalars"][0].keys()
        for field in ("role", "rank", "pid", "attempt", "state", "source", "node"):
            assert on_hub[field] == on_node[field], field
        for total in (on_hub["totals"]["wall_seconds"], on_hub["tokens_total"]["response"]):
            assert total > 0


def test_a_restarted_hub_receives_everything(tmp_path):
    port = unused_port()
    with ExitStack() as stack:
        agent = stack.enter_context(joined(tmp_path, tmp_path / "a", port))
        stack.enter_context(rank(tmp_path, tmp_path / "a"))
        until(lambda: join_state(agent) == "lost", "nobody answers")
        for _ in range(2):
            with hub(tmp_path, port) as the_hub:
                until(lambda: join_state(agent) == "joined", "joined")
                until(lambda hub=the_hub: list(hub.ranks()) == ["0"], "its rank on the hub")
                the_hub.kill()
            until(lambda: join_state(agent) == "lost", "its loss")
        row = until(lambda: lost_row(agent), "what was given up")
        assert "Connection refused" in row["message"]
        assert said(agent.process, "does not answer") == 3
        metrics = agent.get("/metrics")
        assert "\ndfx_hub_joined 0.0" in metrics
        assert "\ndfx_hub_lost_documents_total 0.0" not in metrics


def test_a_wrong_token_is_said_once_on_its_node(tmp_path):
    port = unused_port()
    (tmp_path / "right").write_text("abc\n")
    (tmp_path / "wrong").write_text("abd\n")
    words = ("--token-file", str(tmp_path / "right"))
    with ExitStack() as stack:
        the_hub = stack.enter_context(hub(tmp_path, port, *words))
        wrong = stack.enter_context(
            joined(tmp_path, tmp_path / "a", port, DFX_HUB_TOKEN_FILE=str(tmp_path / "wrong"))
        )
        until(lambda: join_state(wrong) == "refused", "refused")
        right = stack.enter_context(
            joined(tmp_path, tmp_path / "b", port, DFX_HUB_TOKEN_FILE=str(tmp_path / "right"))
        )
        until(lambda: join_state(right) == "joined", "joined")
        lost = wrong.snapshot()["agent"]["hub"]["num_lost"]
        until(lambda: wrong.snapshot()["agent"]["hub"]["num_lost"] > lost, "another try", 60)
        assert said(wrong.process, "wrong token (401)") == 1
        assert posted(the_hub.url, b"") == 401
        (problem,) = snapshot_by_token(the_hub.url, "abc")["agent"]["problems"]
        assert problem["path"] == "127.0.0.1", problem
        named = wrong.snapshot()["agent"]["node"]
        assert f"wrong token or none (401); it calls itself {named};" in problem["message"]


# 65 MiB (a varint) in a field that nobody reads
BOMB = b"\x7a" + bytes([0x80, 0x80, 0xC0, 0x20]) + bytes(65 << 20)


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"\xff\xff\xff", OTLP, 400),
        (b"{}", {"Content-Type": "application/json"}, 415),
        (b"no gzip", OTLP | {"Content-Encoding": "gzip"}, 400),
        (b"", OTLP | {"Content-Encoding": "zstd"}, 400),
        (gzip.compress(bytes(65 << 20)), OTLP | {"Content-Encoding": "gzip"}, 400),
        (gzip.compress(BOMB), OTLP | {"Content-Encoding": "gzip"}, 413),
        (bytes(9 << 20), OTLP, 413),
    ],
    ids=["bytes", "json", "no gzip", "zstd", "zeros", "bomb", "large"],
)
def test_what_cannot_be_read_is_refused_and_counted(live_hub, body, headers, status):
    before = live_hub.nodes().get("node-x", {"num_refused": 0})["num_refused"]
    assert posted(live_hub.url, body, headers | {"dfx-node": "node-x"}) == status
    row = live_hub.nodes()["node-x"]
    assert row["num_refused"] == before + 1
    assert row["message"]


@pytest.fixture(scope="module")
def live_hub(tmp_path_factory):
    with hub(tmp_path_factory.mktemp("hub"), unused_port()) as found:
        yield found


def test_prometheus_scrapes_every_node_by_one_url(prometheus_binary, tmp_path):
    from test_prometheus import scraping

    port, file = unused_port(), tmp_path / "targets.json"
    config = """
global: {scrape_interval: 1s, scrape_timeout: 1s}
scrape_configs:
  - job_name: dfx
    http_sd_configs: [{url: "http://127.0.0.1:AGENT/api/v1/targets", refresh_interval: 1s}]
  - job_name: by-file
    file_sd_configs: [{files: ["FILE"], refresh_interval: 1s}]
""".replace("FILE", str(file))
    with ExitStack() as stack:
        stack.enter_context(hub(tmp_path, port, "--targets-file", str(file)))
        agents = [
            stack.enter_context(joined(tmp_path, tmp_path / name, port, DFX_NODE=name))
            for name in ("a", "b")
        ]
        served = scraping(prometheus_binary, tmp_path, unused_port(), port, config)
        prometheus = stack.enter_context(served)
        ports = sorted(agent.url.partition("//")[2] for agent in agents)

        def scraped(job):
            rows = prometheus.query(f'dfx_agent_info{{job="{job}"}}')
            return sorted(labels["instance"] for labels, _ in rows)

        until(lambda: scraped("dfx") == ports, "both nodes by the URL", 60)
        until(lambda: scraped("by-file") == ports, "both nodes by the file", 60)
        assert len(json.loads(file.read_text())) == 2


@pytest.mark.smoke
def test_one_page_for_a_rank_that_dies_on_a_node(alertmanager_binary, tmp_path):
    port, manager_port = unused_port(), unused_port()
    url = f"http://127.0.0.1:{manager_port}"
    with ExitStack() as stack:
        hook = stack.enter_context(hooked())
        served = alertmanager(alertmanager_binary, tmp_path, manager_port, hook)
        manager = stack.enter_context(served)
        the_hub = stack.enter_context(hub(tmp_path, port, "--alertmanager", url))
        stack.enter_context(joined(tmp_path, tmp_path / "a", port, DFX_ALERTMANAGER=url))
        process = stack.enter_context(rank(tmp_path, tmp_path / "a"))
        until(lambda: "step 5" in process.output, "steps")
        until(lambda: list(the_hub.ranks()) == ["0"], "its rank on the hub")
        process.send(signal.SIGKILL)

        def died():
            return [a for a in manager.alerts() if a["labels"]["alertname"] == "DfxRankDied"]

        (alert,) = until(died, "its death", 90)
        assert "node" not in alert["labels"]
        assert alert["generatorURL"].startswith(the_hub.url)
        assert len(manager.alerts()) == 1


@pytest.mark.smoke
def test_the_hub_is_found_where_the_ranks_meet(tmp_path):
    """Two nodes as they would be started, both here: the first one is the hub as well."""
    port = unused_port()
    (tmp_path / "token").write_text("abc\n")
    command = [sys.executable, str(HERE / "rank_loop.py"), "100000"]
    with ExitStack() as stack:
        jobs = []
        for name in ("a", "b"):
            known = {"DFX_HUB": f"auto:{port}", "DFX_TOKEN_FILE": str(tmp_path / "token")}
            known |= {"DFX_DIR": str(tmp_path / name), "DFX_NODE": name, "PYTHONPATH": str(ROOT)}
            known |= {"MASTER_ADDR": "127.0.0.1", "RANK": str(len(jobs)), "WORLD_SIZE": "2"}
            known |= {"DFX_LINGER_SECONDS": "0"}
            words = ["run", "--run", "two", "--listen", "127.0.0.1:0", "--", *command]
            env = job_environment(**known)
            jobs.append(stack.enter_context(started([*DFX_AGENT, *words], tmp_path, env)))
            until(lambda job=jobs[-1]: "joined the hub" in job.errors, f"{name} has joined")
        assert f"hub http://127.0.0.1:{port}/" in jobs[0].errors
        assert "joining what is there" in jobs[1].errors, "both are beside node rank 0 here"
        url = f"http://127.0.0.1:{port}/api/v1/snapshot?token=abc"

        def ranks():
            with urllib.request.urlopen(url, timeout=10) as response:
                runs = json.load(response)["runs"]
            return {row["rank"]: row["node"] for run in runs for row in run["ranks"]}

        until(lambda: ranks() == {"0": "a", "1": "b"}, "one run with both ranks")
        for job in reversed(jobs):
            job.send(signal.SIGTERM)
            job.wait()


def localhost_certificate(folder):
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


def test_nodes_check_the_certificate_of_their_hub(tmp_path):
    cert, key = localhost_certificate(tmp_path)
    port = unused_port()
    url = f"https://localhost:{port}"
    words = ("hub", "--listen", f"localhost:{port}", "--tls-cert", cert, "--tls-key", key)
    with ExitStack() as stack:
        served = stack.enter_context(started([*DFX_AGENT, *words], tmp_path, job_environment()))
        until(lambda: f"hub {url}/" in served.output, "the hub")
        known = {"DFX_HUB": url, "DFX_HUB_CA_FILE": cert}
        right = stack.enter_context(joined(tmp_path, tmp_path / "a", port, **known))
        wrong = stack.enter_context(joined(tmp_path, tmp_path / "b", port, DFX_HUB=url))
        until(lambda: join_state(right) == "joined", "joined")
        until(lambda: join_state(wrong) == "lost", "refused by the node itself")
        assert "certificate verify failed" in wrong.snapshot()["agent"]["hub"]["message"]

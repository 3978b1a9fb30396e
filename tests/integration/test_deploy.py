"""The shipped Prometheus configuration against an agent that asks for a token."""

import json
import urllib.error
import urllib.request

import pytest
from live_processes import DFX_AGENT, job_environment, started, until, unused_port

TOKEN = "s3cret"


@pytest.fixture
def guarded(tmp_path):
    """Port of an agent that answers nobody without TOKEN, but probes."""
    port = unused_port()
    (tmp_path / "token").write_text(TOKEN + "\n")
    listen = ["--listen", f"127.0.0.1:{port}", "--token-file", str(tmp_path / "token")]
    with started(
        [*DFX_AGENT, "serve", *listen], tmp_path, job_environment(DFX_DIR=str(tmp_path / "seg"))
    ) as process:
        until(lambda: is_ready(process, port), "the agent is ready, asked as Kubernetes asks it")
        yield port


def is_ready(process, port):
    assert process.popen.poll() is None, process.errors
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as answer:
            return answer.status == 200
    except urllib.error.HTTPError as error:
        code = error.code
    except OSError:
        return False
    assert code == 503, "a probe is not asked for a token"
    return False


def last_scrape(port):
    """What Prometheus says of its only target; None before it has scraped it."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/targets", timeout=10) as got:
            (target,) = json.load(got)["data"]["activeTargets"]
    except (OSError, ValueError):
        return None
    assert target["labels"]["job"] == "dfx"
    return None if target["health"] == "unknown" else (target["health"], target["lastError"])


@pytest.mark.parametrize("token", [TOKEN, None], ids=["filled in", "left as shipped"])
def test_the_shipped_prometheus_scrapes_an_agent_with_a_token(
    prometheus_binary, run_cli, guarded, tmp_path, token
):
    folder, port = tmp_path / "assets", unused_port()
    assert run_cli("assets", str(folder), cwd=tmp_path).returncode == 0
    config = folder / "prometheus.yml"
    text = config.read_text()
    assert text.count("127.0.0.1:9931") == 1
    config.write_text(text.replace("127.0.0.1:9931", f"127.0.0.1:{guarded}"))
    if token:
        (folder / "dfx-agent-token").write_text(token)
    command = [
        prometheus_binary,
        f"--config.file={config}",
        f"--web.listen-address=127.0.0.1:{port}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
    ]
    with started(command, tmp_path) as process:

        def scraped():
            assert process.popen.poll() is None, process.errors
            return last_scrape(port)

        health, error = until(scraped, "one scrape", 60)
    assert (health, "401" in error) == (("up", False) if token else ("down", True)), error

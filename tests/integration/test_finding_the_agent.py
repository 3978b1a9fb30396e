"""Verbs that ask an agent find the one that follows the folder, wherever it listens."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from live_processes import (
    DFX_AGENT,
    Started,
    job_environment,
    serving,
    started,
    until,
    unused_port,
)

from dfx_agent.snapshot import AgentRow, Snapshot
from dfx_agent.snapshot.document import Document

LOCK = "agent.lock"


def diagnose(*options: str, **environment: str) -> tuple[str, str]:
    """Where the verdicts are from, and what was said beside them."""
    done = subprocess.run(
        [*DFX_AGENT, "diagnose", "--json", "--watch", "0", *options],
        check=False, capture_output=True, text=True, timeout=60,
        env=job_environment(**environment),
    )  # fmt: skip
    result = json.loads(done.stdout)
    assert done.returncode == (0 if result["runs"] else 2), done.stderr
    return result["source"], done.stderr


@contextmanager
def agent(folder: Path, *options: str) -> Iterator[Started]:
    with started([*DFX_AGENT, "serve", *options], folder) as process:
        until(lambda: "following" in process.output or process.popen.poll() is not None, "serving")
        assert process.popen.poll() is None, process.errors
        yield process


@contextmanager
def stranger(port: int, pid: int = 1) -> Iterator[list[str]]:
    """Another server there, which says that it is the agent ``pid``; what it was asked with."""
    shown: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.append(self.headers.get("Authorization", ""))
            agent = AgentRow("0", pid, "n", 0.0, 1, 0.0, 0, 0, 0, 0, 0, None, ())
            self.send_response(200)
            self.end_headers()
            self.wfile.write(Document(Snapshot).dumped(Snapshot(0.0, agent, ())))

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield shown
    server.shutdown()
    server.server_close()


def test_an_agent_on_another_port_is_asked(dfx_dir, tmp_path) -> None:
    with serving(tmp_path, unused_port()) as served:
        assert diagnose() == (served.url, "")
        done = subprocess.run(
            [*DFX_AGENT, "report", str(tmp_path / "r.html")],
            check=False, capture_output=True, text=True, timeout=60, env=job_environment(),
        )  # fmt: skip
        assert f"no observed process in {dfx_dir}" in done.stderr
        reported = subprocess.run(
            [*DFX_AGENT, "diagnose", "--watch", "0"],
            check=False, capture_output=True, text=True, timeout=60, env=job_environment(),
        )  # fmt: skip
        assert f"the agent at {served.url} is there" in reported.stdout
        assert "start one" not in reported.stdout
    assert diagnose() == ("segments", "")


def test_with_its_token_and_by_loopback_wherever_it_listens(dfx_dir, tmp_path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    port = unused_port()
    with agent(tmp_path, "--listen", f"0.0.0.0:{port}", "--token-file", str(token)):
        url = f"http://127.0.0.1:{port}"
        assert diagnose("--token-file", str(token)) == (url, "")
        assert diagnose(DFX_TOKEN_FILE=str(token)) == (url, "")
        source, result = diagnose()
        assert source == "segments"
        assert result == (
            f"dfx-agent: {url} wants its token: give --token-file FILE; the segments are read\n"
        )


def make_certificate(folder: Path) -> tuple[str, str]:
    """For another name, and signed by itself."""
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1",
         "-subj", "/CN=gpu7.example.org", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


def test_https_shows_the_certificate_that_the_agent_was_started_with(dfx_dir, tmp_path) -> None:
    cert, key = make_certificate(tmp_path)
    port = unused_port()
    options = ("--listen", f"127.0.0.1:{port}", "--tls-cert", cert, "--tls-key", key)
    with agent(tmp_path, *options):
        assert diagnose() == (f"https://127.0.0.1:{port}", "")
        Path(cert).unlink()
        make_certificate(tmp_path)
        source, result = diagnose()
        assert source == "segments"
        assert result.startswith(f"dfx-agent: https://127.0.0.1:{port} does not answer (")
        assert "CERTIFICATE_VERIFY_FAILED" in result
        assert result.count("\n") == 1


def test_what_a_dead_agent_has_left_is_not_believed(dfx_dir, tmp_path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    port = unused_port()
    with agent(tmp_path, "--listen", f"127.0.0.1:{port}", "--token-file", str(token)) as process:
        assert f"http://127.0.0.1:{port}" in (dfx_dir / LOCK).read_text()
        process.popen.kill()
        process.wait()
        with stranger(port, process.pid) as shown:
            assert diagnose("--token-file", str(token)) == ("segments", "")
            assert shown == []


def test_another_agent_in_its_place_is_not_believed(dfx_dir, tmp_path) -> None:
    port = unused_port()
    (dfx_dir / LOCK).write_text(f"{os.getpid():<19}\nhttp://127.0.0.1:{port}\n\n")
    with (dfx_dir / LOCK).open("rb") as lock, stranger(port, pid=1) as shown:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert diagnose()[0] == "segments"
        assert shown == [""]


@pytest.mark.parametrize("text", ["", "x", "7\nfile:///etc/passwd\n", "7\n\xff", "7\nhttp://[\n"])
def test_a_lock_that_says_nothing_is_no_error(dfx_dir, text: str) -> None:
    (dfx_dir / LOCK).write_bytes(text.encode("latin-1"))
    with (dfx_dir / LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert diagnose()[0] == "segments"


def test_the_agent_that_takes_over_is_found(dfx_dir, tmp_path) -> None:
    first_port, second_port = unused_port(), unused_port()
    with (
        agent(tmp_path, "--listen", f"127.0.0.1:{first_port}") as first,
        agent(tmp_path, "--listen", f"127.0.0.1:{second_port}"),
    ):
        assert diagnose()[0].endswith(f":{first_port}")
        first.popen.kill()
        first.wait()
        url = f"http://127.0.0.1:{second_port}"
        until(lambda: url in (dfx_dir / LOCK).read_text(), "the second takes over")
        assert diagnose() == (url, "")


def test_an_agent_that_ends_while_it_is_asked_again_leaves_the_segments(dfx_dir, tmp_path) -> None:
    port = unused_port()
    (dfx_dir / LOCK).write_text(f"{os.getpid():<19}\nhttp://127.0.0.1:{port}\n\n")
    command = [*DFX_AGENT, "diagnose", "--json", "--watch", "6"]
    with (dfx_dir / LOCK).open("rb") as lock, ExitStack() as server:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shown = server.enter_context(stranger(port, os.getpid()))
        with started(command, tmp_path) as asking:
            until(lambda: shown, "it is asked")
            server.close()
            assert asking.wait() == 2, asking.errors  # and there is nobody in them
    assert json.loads(asking.output)["source"] == "segments"
    assert "does not answer (" in asking.errors
    assert asking.errors.endswith("; the segments are read\n")
    assert asking.errors.count("\n") == 1

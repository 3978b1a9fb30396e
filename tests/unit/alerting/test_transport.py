"""One POST: which way it takes, and what is said when it cannot be made."""

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from dfx_agent.alerting.transport import DeliveryError, Endpoint
from dfx_agent.commands.ps.agent_client import NoAnswerError, named

NOBODY = "http://127.0.0.1:1"


class _Taking(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, dict(self.headers)))
        self.send_response(204)
        self.end_headers()

    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers)))
        self.send_error(404)

    def log_message(self, *_args: object) -> None:
        """Not into the tests' output."""


@pytest.fixture
def server() -> Iterator[http.server.HTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Taking) as server:
        server.asked = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(autouse=True)
def no_proxy_of_this_machine(monkeypatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def url_of(server: http.server.HTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def test_no_proxy_stands_between_us_and_this_machine(server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", NOBODY)
    monkeypatch.setenv("ALL_PROXY", NOBODY)
    Endpoint(url_of(server) + "/x?y=%2F").post({})
    with pytest.raises(NoAnswerError, match="HTTP 404 Not Found"):
        named(url_of(server), None).snapshot()
    assert [path for path, _ in server.asked] == ["/x?y=%2F", "/api/v1/snapshot"]


def test_the_proxy_of_the_environment_is_asked_for_what_is_elsewhere(server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", url_of(server))
    Endpoint("http://hooks.example.org/x").post({})
    assert [path for path, _ in server.asked] == ["http://hooks.example.org/x"]


@pytest.mark.parametrize("url", ["http://hooks.example.org/x", "http://[::1/", "http://\x00/"])
def test_what_cannot_be_asked_is_a_failed_delivery_in_one_line(url, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    with pytest.raises(DeliveryError) as caught:
        Endpoint(url).post({})
    assert str(caught.value)
    assert "\n" not in str(caught.value)
    assert not caught.value.is_final


def test_an_agent_that_delivers_nothing_does_not_load_the_http_client():
    code = "import sys, dfx_agent.commands.serve.service; sys.exit('httpx' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)

"""Binding, names, TLS and the end of the HTTP server, with real sockets and processes."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import httpx
import pytest
from scripted_source import ScriptedSource

from dfx_agent.base.errors import ListenError, UsageError
from dfx_agent.web import server as server_module
from dfx_agent.web.app import create_app
from dfx_agent.web.listener import Listener, parse_listen
from dfx_agent.web.server import Server

ASK = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def make_server(host: str = "127.0.0.1", port: int = 0, **options) -> Server:
    app = create_app(ScriptedSource(), lambda accept: (b"", "text/plain"))
    tls = {name: options.pop(name) for name in ("tls_cert", "tls_key") if name in options}
    return Server(app, Listener(host, port, **tls), **options)


@pytest.fixture
def server() -> Iterator[Server]:
    server = make_server()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    server = make_server()
    server.start()
    with httpx.Client(base_url=server.url) as client:
        yield client
    server.stop()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9931", ("127.0.0.1", 9931)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("node-17.cluster:9931", ("node-17.cluster", 9931)),
        ("[::1]:9931", ("::1", 9931)),
        ("[fe80::1]:0", ("fe80::1", 0)),
        (":9931", ("127.0.0.1", 9931)),
        ("9931", ("127.0.0.1", 9931)),
        (" localhost:65535 ", ("localhost", 65535)),
    ],
)
def test_parse_listen(text, expected):
    assert parse_listen(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", ":", "localhost", "localhost:", "host:http", "host:65536", "host:-1", "::1:9931",
     "http://host:80", "a b:80", "host:8 0", "[::1", "[::1]", "x[::1]:80", "host:\uff19"],
)  # fmt: skip
def test_parse_listen_says_what_to_write(text):
    with pytest.raises(UsageError) as caught:
        parse_listen(text)
    message = str(caught.value)
    assert "\n" not in message
    assert "--listen" in message
    assert "write" in message


def test_port_zero_takes_a_free_port_and_url_names_it(server):
    assert server.url.startswith("http://127.0.0.1:")
    assert not server.url.endswith(":0")
    assert httpx.get(f"{server.url}/healthz").status_code == 200


def test_port_in_use_names_address_holder_and_remedy():
    code = (
        "import socket, time; s = socket.create_server(('127.0.0.1', 0));"
        "print(s.getsockname()[1], flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        port = int(holder.stdout.readline())
        with pytest.raises(ListenError) as caught:
            make_server(port=port).start()
        holder.kill()
    message = str(caught.value)
    assert message.startswith(f"cannot listen on 127.0.0.1:{port}: the port is in use by python")
    assert f"(pid {holder.pid})" in message
    assert "--listen" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("host", "reason"),
    [("192.0.2.7", "not an address of this machine"), ("no.such.host.invalid", "no such host")],
)
def test_impossible_address_is_one_line(host, reason):
    with pytest.raises(ListenError) as caught:
        make_server(host, 9931).start()
    message = str(caught.value)
    assert message.startswith(f"cannot listen on {host}:9931: {reason}")
    assert "--listen" in message
    assert "\n" not in message


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "LocalHost:1234", "[::1]:80"])
def test_loopback_names_are_served(client, host):
    assert client.get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9931", "127.0.0.1.evil.example", "localhost.", "", "[x"]
)
@pytest.mark.parametrize("path", ["/", "/healthz", "/api/v1/snapshot", "/metrics"])
def test_other_names_are_refused_on_loopback(client, host, path):
    answer = client.get(path, headers={"Host": host})
    assert answer.status_code == 403
    assert "http://localhost" in answer.json()["detail"]


def test_extra_names_are_served():
    server = make_server(extra_hosts=["Host.Docker.internal"])
    server.start()
    headers = {"Host": "host.docker.internal:9931"}
    assert httpx.get(f"{server.url}/healthz", headers=headers).status_code == 200
    server.stop()


def test_any_name_is_served_on_a_public_address():
    server = make_server("0.0.0.0")
    server.start()
    port = server.url.rpartition(":")[2]
    assert server.url == f"http://{socket.gethostname()}:{port}"
    answer = httpx.get(f"http://127.0.0.1:{port}/healthz", headers={"Host": "node-17"})
    assert answer.status_code == 200
    server.stop()


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_ipv6_loopback():
    server = make_server("::1")
    try:
        server.start()
    except ListenError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")
    assert server.url.startswith("http://[::1]:")
    assert httpx.get(f"{server.url}/healthz").status_code == 200
    server.stop()


@pytest.mark.parametrize(
    ("host", "local"),
    [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::0", "[::1]"), ("localhost", "localhost")],
)
def test_this_machine_finds_it_by_loopback(host, local):
    listener = Listener(host, 0)
    try:
        listener.bind()
    except ListenError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    assert listener.local_url == f"http://{local}:{listener.bind().getsockname()[1]}"
    listener.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


def test_tls(certificate):
    cert, key = certificate
    server = make_server(tls_cert=cert, tls_key=key)
    server.start()
    assert server.url.startswith("https://127.0.0.1:")
    context = ssl.create_default_context(cafile=cert)
    answer = httpx.get(f"{server.url}/healthz", verify=context)
    assert answer.status_code == 200
    server.stop()


def test_missing_or_wrong_tls_files_are_one_line_and_free_the_port(certificate):
    cert, key = certificate
    for cert_file, key_file in (("/nowhere/cert.pem", key), (key, cert)):
        server = make_server(tls_cert=cert_file, tls_key=key_file)
        with pytest.raises(ListenError) as caught:
            server.start()
        message = str(caught.value)
        assert message.startswith(f"cannot use the TLS files {cert_file} and {key_file}: ")
        assert "PEM" in message
        assert "\n" not in message
        with socket.create_server(("127.0.0.1", int(server.url.rpartition(":")[2]))):
            pass


def test_stop_frees_the_port_and_may_be_repeated(server):
    port = int(server.url.rpartition(":")[2])
    httpx.get(f"{server.url}/healthz")
    server.stop()
    server.stop()
    again = make_server(port=port)
    again.start()
    assert httpx.get(f"{again.url}/healthz").status_code == 200
    again.stop()


def test_stop_before_start_does_nothing():
    make_server().stop()


def test_stop_does_not_wait_for_idle_connections(server):
    with httpx.Client(base_url=server.url) as client:
        client.get("/healthz")
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 1.5


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    listener = Listener("127.0.0.1", 0)
    server = Server(create_app(ScriptedSource(), lambda accept: (b"", "text/plain")), listener)
    server.start()
    try:
        yield listener.bind().getsockname()
    finally:
        server.stop()


def connected(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, 60)


def is_ended(client: socket.socket) -> bool:
    """Waits for the end of a connection, or for 60 s."""
    with suppress(ConnectionResetError):
        return client.recv(1) == b""
    return True


@pytest.mark.parametrize(
    "begin", [b"", b"GET / HT", ASK[:-2], b"POST / HTTP/1.1\r\nHost: x\r\nA: "]
)
def test_a_request_that_never_is_whole_is_given_up(address, monkeypatch, begin):
    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 0.5)
    with connected(address) as client:
        client.sendall(begin)
        assert is_ended(client)


def test_a_second_request_has_to_be_whole_too(address, monkeypatch):
    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 0.5)
    with connected(address) as client:
        client.sendall(ASK)
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        client.sendall(ASK[:20])
        while client.recv(4096):
            continue


def test_bytes_that_drip_do_not_extend_it(address, monkeypatch):
    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 0.5)
    begin = time.monotonic()
    with connected(address) as client, suppress(OSError):
        client.sendall(b"GET /")
        while time.monotonic() - begin < 60:
            client.sendall(b"a")
            client.settimeout(0.1)
            with suppress(TimeoutError):
                if client.recv(1) == b"":
                    break
    assert time.monotonic() - begin < 60


def test_among_many_that_ask_for_nothing_who_asks_is_answered(address, monkeypatch):
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 20)
    with ExitStack() as stack:
        silent = [stack.enter_context(connected(address)) for _ in range(60)]
        for _ in range(3):
            client = stack.enter_context(connected(address))
            client.sendall(ASK)
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
        assert is_ended(silent[0])

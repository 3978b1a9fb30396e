"""Connections that ask for nothing, or slowly: real sockets."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from scripted_source import ScriptedSource

from dfx_agent.web import connections
from dfx_agent.web.app import create_app
from dfx_agent.web.listener import Listener
from dfx_agent.web.server import Server

ASK = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


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
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.5)
    with connected(address) as client:
        client.sendall(begin)
        assert is_ended(client)


def test_a_second_request_has_to_be_whole_too(address, monkeypatch):
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.5)
    with connected(address) as client:
        client.sendall(ASK)
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        client.sendall(ASK[:20])
        while client.recv(4096):
            continue


def test_bytes_that_drip_do_not_extend_it(address, monkeypatch):
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.5)
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
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 20)
    with ExitStack() as stack:
        silent = [stack.enter_context(connected(address)) for _ in range(60)]
        for _ in range(3):
            client = stack.enter_context(connected(address))
            client.sendall(ASK)
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
        assert is_ended(silent[0])

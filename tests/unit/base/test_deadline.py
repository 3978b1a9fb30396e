"""Receivers that never end their answer, or let it drip: none holds a thread or the memory."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
import requests

from dfx_agent.alerting import transport
from dfx_agent.alerting.transport import DeliveryError, Endpoint
from dfx_agent.exporters.otel import session as otel_session
from dfx_agent.exporters.otel.session import MAX_ANSWER_BYTES, BoundedSession

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNK = b"10000\r\n" + b"x" * 65536 + b"\r\n"


@contextmanager
def receiver(first: bytes, again: bytes, pause_seconds: float) -> Iterator[tuple[str, list[int]]]:
    """Answers each request with ``first``, then ``again`` for ever; (URL, bytes it got rid of)."""
    listener = socket.create_server(("127.0.0.1", 0))
    is_over = threading.Event()
    sent: list[int] = []

    def serve() -> None:
        with suppress(OSError):
            while not is_over.is_set():
                client, _ = listener.accept()
                with client, suppress(OSError):
                    client.recv(1 << 16)
                    client.sendall(first)
                    while not is_over.wait(pause_seconds):
                        client.sendall(again)
                        sent.append(len(again))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/", sent
    finally:
        is_over.set()
        listener.close()
        thread.join(30)


SLOW = {
    "drips in its status": (b"H", b"T", 0.05),
    "drips in its headers": (HEAD, b"A", 0.05),
    "drips in its body": (b"HTTP/1.1 500 E\r\n\r\n", b"e", 0.05),
    "says nothing": (b"", b"", 0.05),
}


@pytest.fixture(autouse=True)
def short(monkeypatch) -> None:
    monkeypatch.setattr(otel_session, "EXCHANGE_SECONDS", 1.0)
    monkeypatch.setattr(transport, "EXCHANGE_SECONDS", 1.0)


def ends(exchange: Callable[[], object]) -> None:
    """It comes back; a thread that did not would hold its receiver's queue for ever."""
    thread = threading.Thread(target=exchange, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("kind", SLOW)
def test_a_slow_receiver_is_a_failed_delivery(kind):
    failed: list[DeliveryError] = []

    def post(url: str) -> None:
        try:
            Endpoint(url).post({"a": 1})
        except DeliveryError as error:
            failed.append(error)

    with receiver(*SLOW[kind]) as (url, _):
        ends(lambda: post(url))
    assert [error.is_final for error in failed] == [False]


@pytest.mark.parametrize("kind", SLOW)
def test_a_slow_receiver_does_not_hold_the_push(kind):
    def post(url: str) -> None:
        with suppress(requests.RequestException, OSError):
            BoundedSession().post(url, data=b"x", timeout=10)

    with receiver(*SLOW[kind]) as (url, _):
        ends(lambda: post(url))


@pytest.mark.parametrize(
    ("head", "again"),
    [(HEAD + b"\r\n", b"x" * 65536), (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", CHUNK)],
)
def test_of_an_endless_answer_the_push_reads_a_part(head, again):
    taken: list[requests.Response] = []
    with receiver(head, again, 0.0) as (url, sent):
        ends(lambda: taken.append(BoundedSession().post(url, data=b"x", timeout=10)))
    (answer,) = taken
    assert answer.ok
    assert len(answer.content) <= MAX_ANSWER_BYTES
    assert sum(sent) < 64 << 20  # what buffers of the kernel took besides


def test_a_redirect_is_not_followed():
    location = (
        b"HTTP/1.1 307 Elsewhere\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    )
    with receiver(location, b"", 0.05) as (url, _):
        assert BoundedSession().post(url, data=b"x", timeout=10).status_code == 307

"""What travels as it is, though the client would take it compressed."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from scripted_source import ScriptedSource

from dfx_agent.web.app import create_app
from dfx_agent.web.listener import Listener
from dfx_agent.web.server import Server


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    app = create_app(ScriptedSource(), lambda accept: (b"x" * 100, "text/plain"))
    server = Server(app, Listener("127.0.0.1", 0))
    server.start()
    try:
        headers = {"Accept-Encoding": "gzip"}
        with httpx.Client(base_url=server.url, timeout=30, headers=headers) as client:
            yield client
    finally:
        server.stop()


def test_an_event_arrives_while_the_stream_is_open(client):
    with client.stream("GET", "/api/v1/stream") as answer:
        assert "content-encoding" not in answer.headers
        assert next(answer.iter_raw()).startswith(b"retry:")


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/static/plotly.min.js"])
def test_length_and_etag_of_a_file_are_stable(client, path):
    answer = client.get(path)
    assert "content-encoding" not in answer.headers
    assert int(answer.headers["content-length"]) == len(answer.content)


def test_what_is_short_is_not_worth_it(client):
    assert "content-encoding" not in client.get("/metrics").headers

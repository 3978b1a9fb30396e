"""Timelines in pages, of some ranks and of a window of time."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from scripted_source import RUN, ScriptedSource

from dfx_agent.commands.ps.agent_client import AskedAgent
from dfx_agent.web import timeline as timeline_module
from dfx_agent.web.app import create_app
from dfx_agent.web.listener import Listener
from dfx_agent.web.server import Server

SECONDS = 1_800_000_000.0
NUM_RANKS = 20
PATH = f"/api/v1/runs/{RUN}/timeline"


@pytest.fixture
def source() -> ScriptedSource:
    return ScriptedSource(NUM_RANKS, clock=lambda: SECONDS, num_past_steps=6)


@pytest.fixture
def client(source) -> Iterator[httpx.Client]:
    server = Server(
        create_app(source, lambda accept: (b"", "text/plain")), Listener("127.0.0.1", 0)
    )
    server.start()
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client
    server.stop()


def pages(client: httpx.Client, **query) -> list[list[dict]]:
    found = []
    answer = client.get(PATH, params=query)
    while True:
        found.append(answer.json())
        if "next" not in answer.links:
            return found
        answer = client.get(PATH + answer.links["next"]["url"])


@pytest.mark.parametrize("ranks", [[], ["actor/7", "actor/2", "actor/19"]])
def test_pages_together_are_the_whole(client, source, monkeypatch, ranks):
    (whole,) = pages(client, steps=4, rank=ranks)
    assert {row["rank"] for row in whole} == (
        {"7", "2", "19"} if ranks else set(map(str, range(NUM_RANKS)))
    )
    monkeypatch.setattr(timeline_module, "FULL_BYTES", 9000)
    cut = pages(client, steps=4, rank=ranks)
    assert len(cut) > 1
    assert [row for page in cut for row in page] == whole


def test_a_page_ends_with_the_rank_that_fills_it(client, monkeypatch):
    monkeypatch.setattr(timeline_module, "FULL_BYTES", 1)
    assert [{row["rank"] for row in page} for page in pages(client, steps=3)] == [
        {str(rank)} for rank in range(NUM_RANKS)
    ]


def test_ranks_are_asked_of_the_source_a_few_at_a_time(client, source, monkeypatch):
    asked = []
    timeline = source.timeline
    monkeypatch.setattr(
        source,
        "timeline",
        lambda run, steps, ranks=(): asked.append(len(ranks)) or timeline(run, steps, ranks),
    )
    monkeypatch.setattr(timeline_module, "FULL_BYTES", 1)
    client.get(PATH)
    assert asked == [8]  # the first few


def test_a_window_has_what_reaches_into_it(client):
    (whole,) = pages(client, steps=6, rank="actor/1")
    begin, end = SECONDS - 9, SECONDS - 3
    (cut,) = pages(client, steps=6, rank="actor/1", begin=begin, end=end)
    wanted = [
        piece
        for row in whole
        for piece in row["pieces"]
        if piece["end_seconds"] > begin and piece["begin_seconds"] < end
    ]
    assert [piece for row in cut for piece in row["pieces"]] == wanted
    assert 0 < len(cut) < len(whole)


def test_the_successor_of_a_rank_that_is_gone_is_reported(client):
    answer = client.get(PATH, params={"after": "actor/none"})
    assert answer.status_code == 410
    assert "ask again" in answer.json()["detail"]


def test_a_client_gets_all_pages(client, source, monkeypatch):
    monkeypatch.setattr(timeline_module, "FULL_BYTES", 9000)
    assert AskedAgent(str(client.base_url)).timeline(RUN, 3) == source.timeline(RUN, 3)

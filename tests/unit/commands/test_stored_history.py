"""A serving agent answers about stored runs, and its scalars have the steps of earlier agents."""

from __future__ import annotations

import asyncio
import html
import re

import httpx
import pytest
from starlette.applications import Starlette
from stored_scene import BEGIN, STRAGGLER, steps, store

from dfx_agent.agent.config import Config
from dfx_agent.base.errors import ConfigError
from dfx_agent.commands import main
from dfx_agent.commands.serve.stored_history import SourceWithHistory, StoredHistory
from dfx_agent.snapshot import AgentRow, RunRow, ScalarHistory, Snapshot

AGENT = AgentRow("0.1", 1, "n", BEGIN, 1, 0.0, 1, 5, 0, 0, 0, None, ())


class LiveAgent:
    """An agent that has read steps 3 and later of a run; its snapshot has the last two."""

    rows = steps()[30:]

    def snapshot(self):
        row = RunRow("nightly", "verl", 0, 1.0, (), tuple(self.rows[-2:]), ())
        return Snapshot(1.0, AGENT, (row,))

    def closed_steps(self, run, after):
        return tuple(row for row in self.rows if row.step > after)

    def first_scalar_step(self, _run):
        return 3

    def scalar_history(self, run, keys):
        if run != "nightly":
            raise KeyError(run)
        rows = [
            ScalarHistory("reward", None, "", (3, 4), (0.75, 1.0)),
            ScalarHistory("new", None, "", (4,), (1.0,)),
        ]
        return (row for row in rows if not keys or row.key in keys)


@pytest.fixture
def stored(tmp_path):
    rewards = {step: {"reward": step / 4} for step in range(1, 5)}
    return store(tmp_path, "nightly", rows=steps(), incidents=[STRAGGLER], scalars=rewards)


def client_of(directory):
    """A function from a path to its answer."""
    config = Config("/unused", history_directory=directory)
    history = StoredHistory(config, LiveAgent(), list, print)
    transport = httpx.ASGITransport(Starlette(routes=history.routes()))

    async def get(path):
        async with httpx.AsyncClient(transport=transport, base_url="http://agent") as client:
            return await client.get(path)

    return lambda path: asyncio.run(get(path))


def test_stored_runs_are_listed_and_served_by_name_and_id(stored, tmp_path):
    get = client_of(str(tmp_path))
    (row,) = get("/api/v1/history").json()
    assert (row["run"], row["state"], row["num_steps"]) == ("nightly", "found", 40)
    for name in ("nightly", row["id"]):
        found = get(f"/api/v1/history/{name}").json()
        assert found["incidents"][0]["sentence"] == "Rank 1 delays the others."


def test_two_runs_are_compared_as_by_the_verb(stored, tmp_path, capsys):
    other = store(tmp_path, "later", rows=steps())
    get = client_of(str(tmp_path))
    names = [row["id"] for row in get("/api/v1/history").json()]
    assert main(["compare", stored, other, "--history-directory", str(tmp_path)]) == 0
    printed = capsys.readouterr().out.rstrip().splitlines()
    page = html.unescape(get(f"/history?a=nightly&b={names[0]}").text)
    assert all(line in page for line in printed)
    assert get("/api/v1/compare?a=nightly&b=later").json()["a"] == "nightly"
    assert get("/api/v1/compare?a=nightly&b=unknown").status_code == 404
    assert "no stored run 'unknown'" in html.unescape(get("/history?a=nightly&b=unknown").text)
    assert get("/history").text.count(" checked") == 2


def test_pages_show_the_list_and_what_happened_in_a_run(stored, tmp_path):
    get = client_of(str(tmp_path))
    listed = get("/history").text
    assert "found: 1 incident (straggler)" in listed
    (link,) = re.findall(r'href="(/history/[^"]+)"', listed)
    page = get(link).text
    assert "The run ended at 12:00:00" in page
    assert "Rank 1 delays the others." in page
    assert 'class="critical" x="10.0" y="0" width="7.5"' in page
    assert get("/history/unknown").status_code == 307


def test_names_of_runs_are_text_in_pages(tmp_path):
    store(tmp_path, "<script>", ending="")
    listed = client_of(str(tmp_path))("/history").text
    assert "<script>" not in listed
    assert "&lt;script&gt;" in listed


def test_a_path_is_no_name_of_a_run(stored, tmp_path):
    get = client_of(str(tmp_path / "elsewhere"))
    for name in (stored, stored.lstrip("/"), "nightly", "../" + stored.rpartition("/")[2]):
        answer = get(f"/api/v1/history/{name}")
        assert answer.status_code == 404, name
        assert "sqlite" not in answer.text.replace(name, "")


def test_without_history_the_list_is_empty_and_the_page_says_why():
    get = client_of("off")
    assert get("/api/v1/history").json() == []
    assert "History is off" in get("/history").text


def test_a_folder_in_memory_is_a_wrong_setting():
    with pytest.raises(ConfigError, match="in memory"):
        client_of("/dev/shm/x")


def test_scalars_have_the_steps_of_the_earlier_agent_once(stored):
    source = SourceWithHistory(LiveAgent(), lambda _run: stored)
    reward, new = source.scalar_history("nightly", ())
    assert (reward.steps, reward.values) == ((1, 2, 3, 4), (0.25, 0.5, 0.75, 1.0))
    assert new.steps == (4,)


def test_scalars_are_read_one_key_at_a_time(stored, monkeypatch):
    read = []
    rows = [ScalarHistory(key, None, "", (3,), (0.5,)) for key in "ab"]
    histories = (read.append(row.key) or row for row in rows)
    monkeypatch.setattr(LiveAgent, "scalar_history", lambda *_: histories)
    next(iter(SourceWithHistory(LiveAgent(), lambda _run: stored).scalar_history("nightly", ())))
    assert read == ["a"]


def test_scalars_without_a_file_are_those_of_the_agent(stored):
    source = SourceWithHistory(LiveAgent(), lambda _run: None)
    (reward,) = source.scalar_history("nightly", ["reward"])
    assert reward.steps == (3, 4)


def test_scalars_of_a_file_that_cannot_be_read_are_those_of_the_agent(tmp_path):
    path = tmp_path / "x.sqlite"
    path.write_bytes(b"nonsense" * 100)
    source = SourceWithHistory(LiveAgent(), lambda _run: str(path))
    assert [row.steps for row in source.scalar_history("nightly", ())] == [(3, 4), (4,)]


def test_the_heatmap_gets_every_step_once(stored):
    source = SourceWithHistory(LiveAgent(), lambda _run: stored)
    earlier = source.earlier_steps("nightly", -1)
    shown = source.snapshot().runs[0].steps
    assert [row.step for row in (*earlier, *shown)] == list(range(1, 41))
    assert [row.step for row in source.earlier_steps("nightly", 36)] == [37, 38]


def test_the_heatmap_without_a_file_has_the_steps_that_the_agent_holds(tmp_path):
    for path in (None, str(tmp_path / "absent.sqlite")):
        source = SourceWithHistory(LiveAgent(), lambda _run, path=path: path)
        assert [row.step for row in source.earlier_steps("nightly", -1)] == list(range(31, 39))


def test_an_unknown_run_is_known_to_be_unknown_at_once(stored):
    source = SourceWithHistory(LiveAgent(), lambda _run: stored)
    with pytest.raises(KeyError):
        source.scalar_history("other", ())

"""`dfx-agent history` and `dfx-agent sql`: what was stored is found and read, never changed."""

import json
import os
import re
from pathlib import Path

import pytest
from stored_scene import ALERT, BEGIN, STRAGGLER, steps, store

from dfx_agent.commands import main
from dfx_agent.commands.history.history_text import list_lines, run_lines, table_lines
from dfx_agent.exporters.history import stored_run
from dfx_agent.exporters.history.run_file import Fact

ROOT = Path(__file__).resolve().parents[4]
NOW = BEGIN + 10_000


@pytest.fixture
def directory(tmp_path, monkeypatch):
    path = tmp_path / "runs"
    monkeypatch.setenv("DFX_HISTORY_DIRECTORY", str(path))
    return path


@pytest.fixture
def ask(capsys):
    """(exit code, stdout, stderr) of a verb."""

    def run(*words):
        code = main(list(words))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def nightly(directory):
    return store(
        directory, "nightly", rows=steps(), facts=[Fact("package", "", "torch", "2.9")],
        incidents=[STRAGGLER],
        scalars={1: {"reward": 0.25}, 2: {"reward": 0.5, "kl": 0.125}}, alerts=[ALERT],
    )  # fmt: skip


def test_the_list_says_how_each_run_ended(directory, nightly, ask):
    store(directory, "healthy", rows=steps(number=5))
    store(directory, "lost", ending="")
    code, out, _ = ask("history")
    rows = {line.split("-")[0]: line for line in out.splitlines()[1:]}
    assert code == 0
    assert rows["healthy"].endswith("5      ended         clear")
    assert "found: 1 incident (straggler)" in rows["nightly"]
    assert "not observed" in rows["lost"]


def test_a_run_shows_its_incidents_and_its_end_and_is_not_green(nightly):
    run = stored_run.load(nightly)
    text = "\n".join(run_lines(run, NOW))
    assert "clear" not in text
    assert "for 30 s, step 4: critical, straggler" in text
    assert "Rank 1 delays the others." in text
    assert "The run ended at 12:00:00 in step 40" in text
    assert "until the run ended, step 4: warning, DfxStraggler" in text
    assert "40 steps stored, the last is step 40." in text


def test_a_run_without_incidents_says_so(directory):
    text = "\n".join(
        run_lines(stored_run.load(store(directory, "r", rows=steps(), ending="")), NOW)
    )
    assert "no incidents" in text
    assert "no end was observed: the agent stopped first" in text


def test_a_run_that_is_written_now_is_running(directory):
    run = stored_run.load(store(directory, "r", rows=steps(), ending=""))
    assert "running" in list_lines([run], run.latest_seconds + 4)[1]


def test_one_run_as_json(nightly, ask):
    code, out, _ = ask("history", "nightly", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["state"] == "found"
    assert found["incidents"][0]["step"] == 4
    assert [row["id"] for row in json.loads(ask("history", "--json")[1])] == [found["id"]]


def test_no_history_and_an_unknown_run_are_one_line(directory, ask):
    assert ask("history") == (0, "", f"dfx-agent: no stored run in {directory}\n")
    store(directory, "nightly")
    code, _, error = ask("history", "weekly")
    assert code == 2
    assert error == f"dfx-agent: no stored run weekly in {directory}: there are: nightly\n"


def test_history_that_is_off_is_said(monkeypatch, ask):
    monkeypatch.setenv("DFX_HISTORY_DIRECTORY", "off")
    code, _, error = ask("history")
    assert code == 2
    assert "history_directory is off" in error


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_listed(directory, nightly, ask):
    (directory / "broken-1.sqlite").write_bytes(b"nonsense" * 100)
    code, out, error = ask("history")
    assert code == 1
    assert "nightly" in out
    assert "cannot read" in error


def test_a_table_is_cut_at_the_width():
    assert table_lines([("a", "longer"), ("bbb", "text")], 8) == ["a    lo…", "bbb  te…"]


# sql


def test_a_query_is_a_table_or_json(nightly, ask):
    query = "select step, mean from step_values where name = 'tokens:response' and step < 3"
    code, out, error = ask("sql", query)
    assert code == 0
    assert out.splitlines() == ["step  mean", "1     100", "2     100"]
    assert error == "(2 rows)\n"
    assert json.loads(ask("sql", "--json", query)[1])[0] == {"step": 1, "mean": 100.0}


def test_views_read_blocks(nightly, ask):
    query = "select step, key, value from scalars order by step, key"
    rows = json.loads(ask("sql", "--json", query)[1])
    assert [tuple(row.values()) for row in rows] == [
        (1, "reward", 0.25), (2, "kl", 0.125), (2, "reward", 0.5),
    ]  # fmt: skip
    count = "select count(*) as n from rank_values where step = 1 and rank = '1' and name = 'wall'"
    assert json.loads(ask("sql", "--json", count)[1]) == [{"n": 1}]


@pytest.mark.parametrize(
    "query",
    [
        "delete from steps",
        "attach '{other}' as x",
        "pragma query_only=0",
        "create table x (a)",
        "vacuum into '{other}'",
        "select 1; select 2",
        "",
        "nonsense",
    ],
)
def test_nothing_but_one_select_runs(nightly, ask, tmp_path, query):
    before = Path(nightly).read_bytes()
    other = tmp_path / "other.sqlite"
    code, out, error = ask("sql", query.format(other=other))
    assert (code, out) == (2, "")
    assert error.count("\n") == 1
    assert not other.exists()
    assert Path(nightly).read_bytes() == before


def test_a_query_that_takes_too_long_ends(nightly, ask):
    endless = "with recursive t(n) as (select 1 union all select n+1 from t) select count(*) from t"
    code, _, error = ask("sql", "--seconds", "0.2", endless)
    assert code == 1
    assert "took longer than 0.2 s" in error


def test_the_latest_run_is_read_unless_one_is_named(directory, nightly, ask):
    later = store(directory, "later", begin_seconds=BEGIN + 900)
    os.utime(nightly)
    assert "later" in ask("sql", "select name from run")[1]
    assert "nightly" in ask("sql", "--run", "nightly", "select name from run")[1]
    assert "later" in ask("sql", "--run", later, "select name from run")[1]


def test_every_query_of_the_docs_returns_rows(nightly, ask):
    page = (ROOT / "docs" / "reference" / "history.md").read_text(encoding="utf-8")
    queries = re.findall(r"dfx-agent sql (?:--run \S+ )?\"(.+?)\"", page, re.DOTALL)
    assert len(queries) == 3
    for query in queries:
        code, out, error = ask("sql", query)
        assert code == 0, error
        assert len(out.splitlines()) > 1, query


def test_every_column_is_on_the_page(nightly, ask):
    page = (ROOT / "docs" / "reference" / "history.md").read_text(encoding="utf-8")
    tables = json.loads(
        ask("sql", "--json", "select name from sqlite_master where type = 'table'")[1]
    )
    for table in tables:
        columns = json.loads(ask("sql", "--json", f"pragma table_info({table['name']})")[1])
        name = rf"\|[^|]*`{table['name']}`"
        (row,) = [line for line in page.splitlines() if re.match(name, line)]
        assert [c["name"] for c in columns if f"`{c['name']}`" not in row] == []

"""`diagnose` asks an agent with few imports, and believes only the agent of its folder."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from dfx_agent.commands import diagnose

ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nDfx-Exit-Code: 1\r\nDfx-Pids: 12,13\r\n\r\nrun r: x\n"
)


@pytest.mark.parametrize("pids", [frozenset(), frozenset({12}), frozenset({13, 99})])
def test_an_answer_has_the_text_and_the_exit_code(pids):
    assert diagnose._answer(ANSWER, pids) == ("run r: x\n", 1)


@pytest.mark.parametrize(
    ("received", "pids"),
    [
        (ANSWER, frozenset({99})),
        (ANSWER[:-1], frozenset()),
        (ANSWER.replace(b"200 OK", b"404 Not Found"), frozenset()),
        (ANSWER.replace(b"Dfx-Exit-Code", b"X-Other"), frozenset()),
    ],
)
def test_what_is_not_wholly_the_answer_of_this_agent_is_none(received, pids):
    assert diagnose._answer(received, pids) is None


@pytest.mark.parametrize("received", [b"", b"nonsense", b"HTTP/1.1 200 OK\r\nDfx-Pids: x\r\n\r\n"])
def test_nonsense_is_no_answer(received, monkeypatch):
    def get(*_):
        return diagnose._answer(received, frozenset())

    monkeypatch.setattr(diagnose, "_get", get)
    args = argparse.Namespace(
        url="http://h", run=None, json=False, verbose=False, token_file=None, directory=None
    )
    assert diagnose.diagnosis(args) is None


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://127.0.0.1:9931", ("127.0.0.1", 9931, "")),
        ("http://[::1]:9931/x/", ("::1", 9931, "/x")),
        ("http://[::1]", ("::1", 80, "")),
        ("http://node", ("node", 80, "")),
    ],
)
def test_a_url_is_taken_apart(url, parts):
    assert diagnose._parts(url) == parts


def test_ps_and_top_ask_without_the_modules_that_read_segments():
    code = (
        "import sys, dfx_agent.commands.ps, dfx_agent.commands.top.poller, "
        "dfx_agent.commands.top.frame; print(*sys.modules)"
    )
    words = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    assert not {"dfx_agent.agent.agent", "dfx_agent.job", "dfx_agent.exporters"} & set(words)


def test_asking_imports_little():
    code = "import sys, dfx_agent.commands.diagnose; print(len(sys.modules), *sorted(sys.modules))"
    words = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    assert int(words[0]) < 150
    assert not {"pydantic", "httpx", "ssl", "http.client", "yaml", "torch"} & set(words)

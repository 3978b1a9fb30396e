"""What a serving agent answers from its first moment on, over a real segment and a real socket."""

from __future__ import annotations

import threading
import time
from urllib.request import urlopen

from job_scene import Job

from dfx_agent.agent.config import Config
from dfx_agent.base.own_memory import IN_AN_AGENT
from dfx_agent.commands.serve import service as service_module
from dfx_agent.commands.serve.service import Service
from dfx_agent.node.process import Process

SLOW_READING_SECONDS = 0.5


def test_no_answer_comes_before_the_first_reading(dfx_dir, monkeypatch):
    """As right after `attach` on a loaded machine, where the first reading takes seconds."""
    poll = Process.poll

    def slow(self: Process, **kwargs: bool) -> object:
        time.sleep(SLOW_READING_SECONDS)
        return poll(self, **kwargs)

    monkeypatch.setattr(Process, "poll", slow)
    Job(dfx_dir, 0)
    service = Service(Config(str(dfx_dir), listen="127.0.0.1:0"))
    service.bind()
    answers: list[tuple[str | None, str]] = []

    def ask() -> None:
        with urlopen(f"{service.url}/api/v1/diagnosis", timeout=30) as answer:
            answers.append((answer.headers["Dfx-Exit-Code"], answer.read().decode()))

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        service.start()
        asker.join()
    finally:
        service.stop()
    ((exit_code, text),) = answers
    assert "1 of 1 processes live" in text
    assert "insufficient evidence: Waiting for the first complete step." in text
    assert exit_code == "0"


def test_a_serving_agent_collects_garbage_rarely(dfx_dir, monkeypatch):
    calls: list[tuple[int, int, int]] = []
    monkeypatch.setattr(service_module, "collect_rarely", calls.append)
    service = Service(Config(str(dfx_dir), listen="127.0.0.1:0"))
    try:
        service.start()
    finally:
        service.stop()
    assert calls == [IN_AN_AGENT]

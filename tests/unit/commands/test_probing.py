"""Hosts of silent nodes are asked for real: one answers, one refuses, one does not answer."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from nodes_scene import Node

from dfx_agent.commands.hub import probing
from dfx_agent.commands.hub.probing import Probing
from dfx_agent.facts.document import dumped
from dfx_agent.hub.otlp.intake import AgentTarget
from dfx_agent.job import folds
from dfx_agent.job.folds import JobFolds


@pytest.fixture
def listening() -> Iterator[Callable[[], socket.socket]]:
    with ExitStack() as stack:

        def listen() -> socket.socket:
            found = stack.enter_context(socket.socket())
            found.bind(("127.0.0.1", 0))
            found.listen(0)
            return found

        yield listen


@pytest.fixture
def full(listening) -> Iterator[socket.socket]:
    """It takes no more connections: who tries has no answer."""
    busy = listening()
    with ExitStack() as stack:
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)  # noqa: FBT003 (its only argument)
            waiting.connect_ex(busy.getsockname())
        yield busy


@pytest.fixture
def silent(monkeypatch) -> JobFolds:
    """Of a job on four nodes."""
    monkeypatch.setattr(folds, "SILENT_SECONDS", 0.0)
    found = JobFolds()
    for number in range(4):
        node = Node(f"node-{number}", (number,))
        assert found.receive(dumped(node.facts(0)), node.name)
    return found


def target(node: str, port: int, host: str = "127.0.0.1") -> AgentTarget:
    return AgentTarget(node, f"http://{host}:{port}", ())


def reach(known: JobFolds) -> dict[str, str]:
    return dict(known._jobs[0].fold.reach)


def test_each_host_is_told_apart(silent, listening, full, monkeypatch):
    monkeypatch.setattr(probing, "EVERY_SECONDS", 0.01)
    monkeypatch.setattr(probing, "ANSWER_SECONDS", 0.5)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        targets = [
            target("node-0", listening().getsockname()[1]),
            target("node-1", unused.getsockname()[1]),
            target("node-2", full.getsockname()[1]),
            target("node-3", 1, "no-such-host.invalid"),
        ]
        asking = Probing(silent, lambda: targets)
        asking.start(is_local=True)
        end = time.monotonic() + 30
        while len(reach(silent)) < 3 and time.monotonic() < end:
            time.sleep(0.01)
        asking.stop()
    assert reach(silent) == {"node-0": "answers", "node-1": "refused", "node-2": "no answer"}


def test_the_best_of_several_agents_counts(silent, full):
    asking = Probing(silent, lambda: [target("node-2", full.getsockname()[1]), target("node-2", 1)])
    asking._is_local = True
    asking.probe()
    assert reach(silent) == {"node-2": "refused"}


def test_a_loopback_of_another_machine_is_not_ours(silent):
    asking = Probing(silent, lambda: [target("node-1", 1)])
    asking.probe()
    assert reach(silent) == {}


def test_of_a_node_that_is_heard_again_nothing_is_said(silent, monkeypatch):
    asking = Probing(silent, lambda: [target("node-1", 1)])
    asking._is_local = True
    asking.probe()
    assert reach(silent) == {"node-1": "refused"}
    monkeypatch.setattr(folds, "SILENT_SECONDS", 15.0)
    asking.probe()
    assert reach(silent) == {}


def test_of_many_silent_nodes_all_have_their_turn(silent, monkeypatch):
    monkeypatch.setattr(probing, "_AT_ONCE", 3)
    asking = Probing(silent, lambda: [target(f"node-{number}", 1) for number in range(4)])
    asking._is_local = True
    asking.probe()
    assert len(reach(silent)) == 3
    asking.probe()
    assert len(reach(silent)) == 4

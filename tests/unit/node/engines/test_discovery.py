"""Engines of a job in real processes: started by it, called by it, and nobody else's."""

import os
import shutil
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import scripted_engine
from scripted_engine import ScriptedEngine

from dfx_agent.node.engines import discovery
from dfx_agent.node.engines.discovery import Discovery, ProbePauses, family
from dfx_agent.node.host.processes import ProcessEntry, environment_value, process_table
from dfx_agent.node.host.sockets import socket_inodes, sockets

AGENT = 1 << 22  # no process has this pid


@contextmanager
def served(folder: Path, *argv: str, **known):
    """A child whose command line is that of ``vllm serve``; (its pid, its port)."""
    program = folder / "vllm"
    shutil.copy(scripted_engine.__file__, program)
    command = [sys.executable, str(program), "serve", "a-model", *argv]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, **known) as child:
        try:
            yield child.pid, int(child.stdout.readline())
        finally:
            child.stdin.close()


def looked(jobs, own_pid=AGENT, found_by=None):
    return (found_by or Discovery()).look(jobs, own_pid, 0.0)


def test_a_server_that_a_rank_started_is_found_with_its_port(tmp_path, free_port):
    port = free_port()
    with served(tmp_path, "--port", str(port)) as (pid, _):
        sure, _ = looked({"r": {os.getpid(): "trainer"}})
    found = {one.pid: one for one in sure}[pid]
    assert (found.url, found.run) == (f"http://127.0.0.1:{port}/metrics", "r")
    assert found.origin == "command line"


def test_one_that_somebody_else_started_is_not_the_jobs(tmp_path, free_port):
    with served(tmp_path, "--port", str(free_port()), start_new_session=True) as (pid, _):
        sleeper = subprocess.Popen(["sleep", "60"], start_new_session=True)
        with sleeper:
            # a job whose parent is not this process: that one would have started the server, too
            table = process_table()
            rank = table[sleeper.pid]._replace(parent=1)
            members = family({**table, rank.pid: rank}, {rank.pid}, AGENT, lambda _: False)
            sleeper.kill()
    assert members == {rank.pid}
    assert pid not in members


def test_a_server_that_the_job_is_connected_to_is_called(tmp_path, free_port, monkeypatch):
    port = free_port()
    monkeypatch.setattr(discovery, "family", lambda *_: {os.getpid()})
    with served(tmp_path, "--port", str(port)) as (pid, _):
        jobs = {"r": {os.getpid(): "trainer"}}
        sure, _ = looked(jobs)
        assert [one for one in sure if one.pid == pid] == []
        with socket.create_connection(("127.0.0.1", port)):
            sure, _ = looked(jobs)
    assert [(one.pid, one.origin) for one in sure] == [(pid, "called")]


def test_what_trains_is_never_asked_and_what_serves_in_process_is(monkeypatch):
    """vLLM in a process that listens: this one, which has it loaded as far as the kernel knows."""
    monkeypatch.setattr(discovery, "family", lambda *_: {os.getpid()})
    monkeypatch.setattr(discovery, "has_mapped", lambda pid, _: pid == os.getpid())
    engine = ScriptedEngine()
    try:
        _, maybe = looked({"r": {os.getpid(): "trainer"}})
        assert maybe == []
        _, maybe = looked({"r": {os.getpid(): "rollout"}})
        (found,) = [one for one in maybe if one.url == f"{engine.url}/metrics"]
        assert (found.origin, found.pid) == ("socket", os.getpid())
        looking = Discovery()
        looking.note_failure(found, 0.0)
        _, maybe = looked({"r": {os.getpid(): "rollout"}}, found_by=looking)
        assert found not in maybe
        _, maybe = looking.look({"r": {os.getpid(): "rollout"}}, AGENT, 16.0, {found.url})
        assert found not in maybe
        monkeypatch.setattr(discovery, "environment_value", lambda *_: str(engine.port))
        _, maybe = looked({"r": {os.getpid(): "rollout"}})
        assert found not in maybe  # the rendezvous of torch
    finally:
        engine.close()


def test_a_process_without_an_engine_is_not_asked(monkeypatch):
    monkeypatch.setattr(discovery, "family", lambda *_: {os.getpid()})
    engine = ScriptedEngine()
    try:
        _, maybe = looked({"r": {os.getpid(): "rollout"}})
    finally:
        engine.close()
    assert maybe == []


def test_a_run_without_a_living_process_has_none():
    assert looked({"r": {}}) == ([], [])


def test_rests_grow_and_end():
    rests, at, asked = ProbePauses(), 0.0, []
    for second in range(2000):
        at = float(second)
        if rests.may_probe("x", at):
            asked.append(second)
            rests.note_failure("x", at)
    assert asked == [0, 15, 45, 105, 225, 465, 945, 1545]


def entries(*rows):
    return {pid: ProcessEntry(pid, parent, group, 1) for pid, parent, group in rows}


def test_the_family_is_what_was_started_with_the_ranks_and_by_them():
    table = entries(
        (1, 0, 1), (10, 1, 10), (11, 10, 10), (12, 10, 10), (13, 12, 13), (14, 13, 14),
        (20, 1, 20), (21, 20, 20),
    )  # fmt: skip
    # 10 a script, 11 its server, 12 torchrun, 13 a rank in a session of its own, 14 its child
    assert family(table, [13], AGENT, lambda _: False) == {10, 11, 12, 13, 14}
    assert family(table, [11], AGENT, lambda _: False) == {11, 12, 13, 14}  # 10: maybe a shell
    assert family(table, [13], 10, lambda _: False) == {11, 13, 14}
    assert family(table, [999], AGENT, lambda _: False) == set()


def test_workers_of_one_raylet_are_one_job():
    table = entries((5, 1, 5), (6, 5, 6), (7, 5, 7), (8, 1, 8))
    assert family(table, [6], AGENT, lambda pid: pid == 5) == {5, 6, 7}
    assert family(table, [6], AGENT, lambda _: False) == {6}


def test_the_agent_itself_is_no_part_of_the_job():
    table = entries((5, 1, 5), (6, 5, 5), (7, 5, 5))
    assert family(table, [6], 5, lambda _: False) == {6, 7}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_sockets_of_this_process(host):
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(kind) as listening, socket.socket(kind) as client:
        try:
            listening.bind((host, 0))
        except OSError:
            assert host == "::1", "this machine has no IPv4 loopback"
            return
        listening.listen()
        client.connect(listening.getsockname())
        net = sockets()
        own = list(socket_inodes(os.getpid()))
        port = listening.getsockname()[1]
        assert (host, port) in [net.listening[i] for i in own if i in net.listening]
        assert (host, port) in [net.connected[i][1] for i in own if i in net.connected]


def test_a_value_of_a_process_environment():
    given = {"PATH": os.environ["PATH"], "MASTER_PORT": "29500"}
    with subprocess.Popen(["sleep", "60"], env=given) as child:
        try:
            found = {}
            while not found:  # until it has become sleep
                found = {environment_value(child.pid, "MASTER_PORT")} - {""}
            assert found == {"29500"}
            assert environment_value(child.pid, "NOBODY") == ""
        finally:
            child.kill()
    assert environment_value(AGENT, "PATH") == ""

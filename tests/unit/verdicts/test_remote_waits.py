"""A rank that waits for a server that answers no more is named, with its place in the code."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from hang_scene import SECOND, Rank, Scene, hold_in, staged

from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.stacks import client_of
from dfx_agent.judge.hang import behind
from dfx_agent.node.segments import stacks
from dfx_agent.wire.records import WAIT

SITE = "/venv/lib/python3.11/site-packages"
REQUESTS = (
    ("main", "/job/train.py", 90),
    ("fetch", "/job/train.py", 12),
    ("post", f"{SITE}/requests/api.py", 115),
    ("urlopen", f"{SITE}/urllib3/connectionpool.py", 787),
    ("getresponse", "/usr/lib/python3.11/http/client.py", 1378),
    ("readinto", "/usr/lib/python3.11/socket.py", 705),
)
ELSEWHERE = (*REQUESTS[:2], ("select", "/usr/lib/python3.11/selectors.py", 468))
VALIDATES = (REQUESTS[0], ("evaluate", "/job/train.py", 40), *REQUESTS[1:])


@pytest.fixture
def scene(dfx_dir) -> Iterator[Scene]:
    with staged(dfx_dir) as scene:
        yield scene


def write_stacks(rank: Rank, calls: tuple[tuple[str, str, int], ...]) -> None:
    """As the guest does, a second after the rank has moved."""
    lines = "\n".join(f'  File "{file}", line {n} in {name}' for name, file, n in reversed(calls))
    rank.path.with_suffix(".stacks").write_text(
        f"dfx-stacks 1 {rank.owner.pid} {time.monotonic_ns() + SECOND} 0xaa\n"
        f"name 0xaa 1 MainThread\n\nThread 0x00000000000000aa (most recent call first):\n{lines}\n"
    )


def asks(scene: Scene, calls: tuple[tuple[str, str, int], ...], num_steps: int = 6) -> list[Rank]:
    """Rank 0 alone asks a server, outside every stage, after steps that took next to nothing."""
    ranks = scene.warm_up(num_steps=num_steps)
    write_stacks(ranks[0], calls)
    return ranks


@pytest.mark.parametrize("others_wait", [True, False])
def test_it_is_named_with_what_it_waits_for_and_where(scene, others_wait):
    ranks = asks(scene, REQUESTS)
    if others_wait:
        hold_in(ranks[1:], "broadcast@0", 7)
    else:  # others move on, as the actors of an asynchronous job: nothing else is seen to stand
        for rank in ranks[1:]:
            write_stacks(rank, ELSEWHERE)
    assert scene.look(110).state != "found"
    verdict = scene.look(130)
    assert (verdict.state, verdict.cause, verdict.ranks) == ("found", "no answer", ("0",))
    assert verdict.summary.startswith("Rank 0 has waited for an HTTP answer for 130 s, at fetch")
    assert "fetch (train.py:12)" in verdict.summary
    assert ("Ranks 1, 2, 3 wait in broadcast for" in verdict.summary) == others_wait
    assert "an answer may take 120 s" in verdict.evidence[1]


def test_the_guest_sees_it_without_any_stack(scene):
    ranks = scene.warm_up(num_steps=6)
    ranks[0].enters("remote", WAIT)
    hold_in(ranks[1:], "broadcast@0", 7)
    assert scene.look(110).state == "insufficient evidence"
    verdict = scene.look(130)
    assert (verdict.state, verdict.cause, verdict.ranks) == ("found", "no answer", ("0",))
    assert verdict.summary.startswith("Rank 0 has waited for a server's answer for 130 s. A step")


def test_who_asks_again_and_again_has_not_moved(scene):
    ranks = scene.warm_up(num_steps=6)
    ranks[0].writes_stacks("main", "sleep")
    hold_in(ranks[1:], "broadcast@0", 7)
    before = scene.look(0)
    assert before.state == "clear"
    moved_ns = next(iter(scene.watch.tracks)).moved_ns
    for _ in range(3):
        ranks[0].enters("remote", WAIT)
        scene.look(1)
        ranks[0].leaves()
        scene.look(1)
    assert next(iter(scene.watch.tracks)).moved_ns == moved_ns
    verdict = scene.look(61)
    assert (verdict.state, verdict.ranks) == ("found", ("0",))


def test_who_waits_for_something_else_is_not_said_to_ask_a_server(scene):
    ranks = asks(scene, ELSEWHERE)
    for rank in ranks[1:]:
        write_stacks(rank, ELSEWHERE)
    assert scene.look(130).cause != "no answer"


def test_an_evaluation_by_a_server_may_take_ten_minutes(scene):
    ranks = asks(scene, VALIDATES)
    hold_in(ranks[1:], "broadcast@0", 7)
    assert scene.look(590).state == "clear"
    assert scene.look(610).cause == "no answer"


def test_it_may_take_as_long_as_steps_do(scene, monkeypatch):
    ranks = asks(scene, REQUESTS)
    hold_in(ranks[1:], "broadcast@0", 7)
    scene.look()
    for track in scene.watch.tracks:
        monkeypatch.setattr(type(track), "step_durations", [30 * SECOND] * 9 + [60 * SECOND])
    assert scene.look(290).state == "clear"
    verdict = scene.look(310)
    assert verdict.cause == "no answer"
    assert "a step takes 30 s (median of 40, longest 60)" in verdict.evidence[1]


def test_the_first_steps_teach_nothing(scene):
    ranks = asks(scene, REQUESTS, num_steps=2)
    hold_in(ranks[1:], "broadcast@0", 7)
    assert scene.look(130).cause != "no answer"


@pytest.mark.parametrize(
    ("file", "answer"),
    [
        (f"{SITE}/httpx/_client.py", "an HTTP answer"),
        (f"{SITE}/aiohttp/client.py", "an HTTP answer"),
        ("/usr/lib/python3.11/urllib/request.py", "an HTTP answer"),
        (f"{SITE}/grpc/_channel.py", "a gRPC answer"),
        (f"{SITE}/zmq/sugar/socket.py", "a ZeroMQ message"),
        (f"{SITE}/ray/_private/worker.py", "a Ray object"),
        ("/job/http_client.py", ""),
        (f"{SITE}/torch/nn/modules/linear.py", ""),
    ],
)
def test_clients_are_known_by_their_files(file, answer):
    main = stacks.ThreadStack("MainThread", 1, is_main=True, frames=(stacks.Frame(file, 1, "f"),))
    assert client_of(stacks.ProcessStacks("guest", 0, (main,))) == answer


def test_a_real_process_in_urllib_and_the_stacks_that_the_guest_writes(tmp_path):
    script = (
        "import sys, threading, urllib.request\n"
        "from dfx_agent.shim.stacks import write_stacks\n"
        "def write():\n    write_stacks(sys.argv[2])\n    print('written', flush=True)\n"
        "def fetch():\n    urllib.request.urlopen(sys.argv[1])\n"
        "threading.Thread(target=lambda: (sys.stdin.readline(), write()),"
        " daemon=True).start()\n"
        "fetch()\n"
    )
    job = tmp_path / "train.py"
    job.write_text(script)
    segment = str(tmp_path / "a.seg")
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        child = subprocess.Popen(
            [sys.executable, str(job), url, segment],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        connection, _ = server.accept()
        connection.recv(4096)  # the whole request: now it waits for the answer
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "written\n"
        taken = stacks.read_stacks(segment, 0)
        connection.close()
        child.kill()
        child.communicate()
    assert client_of(taken) == "an HTTP answer"
    assert not taken.is_long_function()


@pytest.mark.parametrize(
    ("asked_ago", "quiet", "seconds"), [(30, 100, 30), (100, 30, 30), (None, 100, 100)]
)
def test_it_waits_since_it_asked_or_moved_whichever_is_later(asked_ago, quiet, seconds):
    now_ns = 10**12
    asks_since_ns = None if asked_ago is None else now_ns - asked_ago * SECOND
    moved_ns = now_ns - quiet * SECOND
    rank = RankFacts(label="0", now_ns=now_ns, moved_ns=moved_ns, asks_since_ns=asks_since_ns)
    assert behind._seconds(rank) == seconds

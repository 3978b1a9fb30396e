"""Calls of a server's clients on the main thread are waits, and nothing else is changed by it."""

from __future__ import annotations

import http.client
import socket
import sys
import threading
import time
import types
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

import dfx_agent.shim as dfx
from dfx_agent.shim import clients, patches, recorder, span_writer
from dfx_agent.shim.lifecycle import guest
from dfx_agent.wire import SegmentReader
from dfx_agent.wire.records import FAILED, KIND_MASK, STAGE, WAIT

ANSWER_SECONDS = 0.05


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        time.sleep(ANSWER_SECONDS)
        self.send_response(200 if self.path == "/" else 404)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.fixture
def reader(dfx_dir, monkeypatch) -> Iterator[SegmentReader]:
    """Of this process with a guest that has these hooks and none into torch."""
    guest.stop()
    ours = {hook.name for hook in clients.PATCHES.values()}
    monkeypatch.setattr(patches, "disabled", lambda: patches.registry.keys() - ours)
    guest._is_refused = False
    span_writer.step_of_context.set(None)
    span_writer.innermost.set(None)
    assert dfx.init(run="r", role="trainer", rank=0)
    with closing(SegmentReader(recorder.current.path)) as segment:
        yield segment
    guest.stop()


def spans(reader: SegmentReader) -> list[tuple[str, int]]:
    """(name, kind with flags) of each span."""
    return [(reader.name(r[9]) or "", r[8]) for r in reader.poll() if r[8] & KIND_MASK <= WAIT]


def ask_urllib(url: str) -> bytes:
    with urllib.request.urlopen(url) as answer:
        return answer.read()


def ask_httpx(url: str) -> bytes:
    with httpx.Client(trust_env=False) as client:
        return client.get(url).raise_for_status().content


ASK = pytest.mark.parametrize("ask", [ask_urllib, ask_httpx])


@ASK
def test_an_answer_that_is_waited_for_is_one_wait_of_that_length(reader, url, ask):
    assert ask(url) == b"ok"
    (row,) = (r for r in reader.poll() if r[8] & KIND_MASK <= WAIT)
    assert (reader.name(row[9]), row[8]) == ("remote", WAIT)
    assert row[2] - row[1] >= ANSWER_SECONDS * 1e9
    assert span_writer.innermost.get() is None


@ASK
def test_inside_a_span_of_the_job_it_is_the_jobs_time(reader, url, ask):
    with dfx.stage("rollout"):
        ask(url)
    with dfx.wait("queue"):
        ask(url)
    assert spans(reader) == [("rollout", STAGE), ("queue", WAIT)]
    ask(url)
    assert spans(reader) == [("remote", WAIT)]


@ASK
def test_in_another_thread_it_delays_no_other(reader, url, ask):
    thread = threading.Thread(target=ask, args=(url,))
    thread.start()
    thread.join()
    assert spans(reader) == []


def test_an_exception_is_raised_and_reported(reader):
    with socket_that_hangs_up() as url, pytest.raises(http.client.RemoteDisconnected):
        ask_urllib(url)
    assert spans(reader) == [("remote", WAIT | FAILED)]


@contextmanager
def socket_that_hangs_up() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            connection.recv(4096)
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"
        thread.join()


def test_an_answer_that_is_an_error_stays_one(reader, url):
    with pytest.raises(urllib.error.HTTPError):
        ask_urllib(f"{url}missing")
    assert spans(reader) == [("remote", WAIT)]


def test_everything_is_put_back(reader, url):
    ours = http.client.HTTPConnection.getresponse, httpx.HTTPTransport.handle_request
    guest.stop()
    theirs = http.client.HTTPConnection.getresponse, httpx.HTTPTransport.handle_request
    assert [function.__code__.co_filename.endswith("clients.py") for function in ours] == [True] * 2
    assert not any("dfx_agent" in function.__code__.co_filename for function in theirs)
    assert ask_urllib(url) == b"ok"


def test_nothing_is_changed_in_a_process_that_does_not_record():
    guest.stop()
    recorder.start_late = None
    clients.install()
    assert "dfx_agent" not in http.client.HTTPConnection.getresponse.__code__.co_filename


def zmq(monkeypatch) -> types.ModuleType:
    """Its names and signatures; ``recv`` comes from a base class, as from the compiled one."""
    module = types.ModuleType("zmq")

    class Compiled:
        def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> tuple[Any, ...]:  # noqa: FBT001, FBT002
            return flags, copy, track

    class Socket(Compiled):
        pass

    class Poller:
        def poll(self, timeout: int | None = None) -> list[Any]:
            return [timeout]

    module.Socket, module.Poller = Socket, Poller
    monkeypatch.setitem(sys.modules, "zmq", module)
    clients.install()
    return module


@pytest.mark.parametrize(
    ("call", "waits"),
    [
        (lambda z: z.Socket().recv(), True),
        (lambda z: z.Socket().recv(copy=False), True),
        (lambda z: z.Socket().recv(1), False),
        (lambda z: z.Socket().recv(flags=1), False),
        (lambda z: z.Poller().poll(), True),
        (lambda z: z.Poller().poll(1), True),
        (lambda z: z.Poller().poll(timeout=0), False),
        (lambda z: z.Poller().poll(0), False),
    ],
)
def test_zmq_waits_where_it_blocks(reader, monkeypatch, call: Callable[[Any], Any], waits):
    module = zmq(monkeypatch)
    bare = call(module)
    assert spans(reader) == [("remote", WAIT)] * waits
    clients.PATCHES["zmq"].restore()
    assert call(module) == bare
    assert "recv" not in vars(module.Socket)


def test_a_batch_that_a_data_loader_does_not_have_yet_is_a_wait(reader):
    """Its worker sleeps at each batch; the queue is empty whenever the next one is asked for."""
    torch_data = pytest.importorskip("torch.utils.data")
    clients.install()
    loader = torch_data.DataLoader(Slow(), num_workers=1, batch_size=1)
    assert len([*loader]) == NUM_BATCHES
    assert spans(reader)[:1] == [("data_loader", WAIT)]
    guest.stop()
    iterator = sys.modules["torch.utils.data.dataloader"]._MultiProcessingDataLoaderIter
    assert "dfx_agent" not in iterator._get_data.__code__.co_filename


NUM_BATCHES = 3


class Slow:
    def __len__(self) -> int:
        return NUM_BATCHES

    def __getitem__(self, number: int) -> int:
        time.sleep(ANSWER_SECONDS)
        return number

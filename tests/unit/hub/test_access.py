"""Who is let in: real sockets of real users."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from scripted_source import RUN, ScriptedSource

from dfx_agent.hub.access import Access, uid_of
from dfx_agent.web.app import create_app
from dfx_agent.web.listener import Listener
from dfx_agent.web.server import Server

TOKEN = "f" * 32
STRANGER = 4242
RESET = f"/api/v1/runs/{RUN}/signals/reset"
ME = frozenset({os.getuid()})
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
# a request as another user, who never opened a file of ours: (status, body)
ASK = """
import os, socket, sys
uid, host, port, method, path = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), *sys.argv[4:]
os.setgroups([]); os.setgid(uid); os.setuid(uid)
client = socket.socket()  # as who may read no file of ours: nothing is imported any more
client.connect((host, port))
client.sendall(f"{method} {path} HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n".encode())
print(int(client.recv(64).split()[1]))
"""


@contextmanager
def serving(access: Access, host: str = "127.0.0.1") -> Iterator[tuple[str, int]]:
    app = create_app(ScriptedSource(), lambda accept: (b"# EOF\n", "text/plain"), access)
    listener = Listener(host, 0)
    server = Server(app, listener)
    server.start()
    try:
        yield listener.bind().getsockname()[:2]
    finally:
        server.stop()


def ask(address: tuple[str, int], path: str, method: str = "GET", uid: int = STRANGER) -> int:
    command = [sys.executable, "-c", ASK, str(uid), address[0], str(address[1]), method, path]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


def client_of(address: tuple[str, int]) -> httpx.Client:
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return httpx.Client(base_url=f"http://{host}:{address[1]}", timeout=30)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_process_of_the_same_user_reads_and_cannot_change(host):
    with serving(Access(TOKEN, uids=ME), host) as address, client_of(address) as client:
        for path in ("/metrics", "/api/v1/snapshot"):
            assert client.get(path).status_code == 200
        answer = client.post(RESET)
        assert answer.status_code == 401
        assert answer.json()["detail"].startswith("token required")
        shown = {"Authorization": f"Bearer {TOKEN}"}
        assert client.post(RESET, headers=shown).status_code == 204


def test_the_page_of_the_same_user_gets_what_its_button_needs():
    with serving(Access(TOKEN, uids=ME)) as address, client_of(address) as client:
        assert "set-cookie" not in client.get("/metrics").headers
        cookie = client.get("/").headers["set-cookie"]
        assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
        assert TOKEN not in cookie
        assert client.post(RESET).status_code == 204
        evil = {"Origin": "http://evil.example"}
        assert client.post(RESET, headers=evil).status_code == 403


@needs_root
def test_another_local_user_reads_nothing_and_changes_nothing():
    with serving(Access(TOKEN, uids=frozenset({0}))) as address:
        for path in ("/", "/metrics", "/api/v1/snapshot", "/api/v1/stream"):
            assert ask(address, path) == 401
        assert ask(address, RESET, "POST") == 401
        assert ask(address, "/healthz") == 200
        assert ask(address, f"/metrics?token={TOKEN}") == 200


@needs_root
def test_whose_folder_it_is_may_read():
    with serving(Access(TOKEN, uids=frozenset({0, STRANGER}))) as address:
        assert ask(address, "/metrics") == 200
        assert ask(address, RESET, "POST") == 401


@needs_root
def test_open_to_local_users_is_for_reading_only():
    with serving(Access(TOKEN, uids=ME, is_open_to_local_users=True)) as address:
        assert ask(address, "/metrics") == 200
        assert ask(address, RESET, "POST") == 401
        with client_of(address) as client:
            assert "set-cookie" not in client.get("/").headers


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "Via", "X-Real-IP"])
def test_what_comes_through_a_proxy_shows_the_token(header):
    access = Access(TOKEN, uids=ME, is_open_to_local_users=True)
    with serving(access) as address, client_of(address) as client:
        assert client.get("/metrics", headers={header: "127.0.0.1"}).status_code == 401
        headers = {header: "127.0.0.1", "Authorization": f"Bearer {TOKEN}"}
        assert client.get("/metrics", headers=headers).status_code == 200


def test_a_configured_token_is_required_of_every_sender():
    with serving(Access(TOKEN)) as address, client_of(address) as client:
        assert client.get("/metrics").status_code == 401


def test_without_a_token_nothing_can_be_changed():
    with serving(Access(None, uids=ME)) as address, client_of(address) as client:
        assert client.get("/metrics").status_code == 200
        assert client.post(RESET).status_code == 401
        empty = {"Authorization": "Bearer x"}
        assert client.post(RESET, headers=empty).status_code == 401
        assert client.post(RESET, params={"token": ""}).status_code == 401


def test_a_process_of_the_same_user_may_send_to_a_hub():
    with serving(Access(None, uids=ME)) as address, client_of(address) as client:
        assert client.post("/v1/logs").status_code == 404, "let in: this app has no such path"
        forwarded = {"X-Forwarded-For": "127.0.0.1"}
        assert client.post("/v1/logs", headers=forwarded).status_code == 401
    with serving(Access(TOKEN)) as address, client_of(address) as client:
        assert client.post("/v1/logs").status_code == 401


@needs_root
def test_another_local_user_may_not_send_to_a_hub():
    with serving(Access(None, uids=ME, is_open_to_local_users=True)) as address:
        assert ask(address, "/v1/logs", "POST") == 401


MAPPED = "0000000000000000FFFF00000100007F"


def row(near: str, far: str, state: str = "01", uid: int = 1000, inode: int = 7) -> str:
    queues = "00000000:00000000 00:00000000 00000000"
    return f"   0: {near} {far} {state} {queues}  {uid}        0 {inode} 1\n"


@pytest.mark.parametrize(
    ("line", "uid"),
    [
        (row("0100007F:1F90", "0100007F:26CB"), 1000),
        (row("0100007F:1F90", "0100007F:26CB", inode=0, uid=0), None),  # closed: shown as root's
        (row("0100007F:1F90", "0100007F:26CB", state="06", inode=0, uid=0), None),
        (row("0100007F:1F90", "0100007F:26CB", state="04"), None),
        (row("0100007F:26CB", "0100007F:1F90"), None),  # our own end
        (row("0100007F:1F91", "0100007F:26CB"), None),
        (row(f"{MAPPED}:1F90", f"{MAPPED}:26CB"), 1000),
        ("   0: 0100007F:1F90 0100007F:26CB 01\n", None),
        ("", None),
    ],
)  # fmt: skip
@pytest.mark.skipif(sys.byteorder != "little", reason="the lines are of a little-endian machine")
def test_the_owner_is_that_of_the_clients_open_end(monkeypatch, tmp_path, line, uid):
    table = tmp_path / "tcp"
    table.write_text(f"  sl  local_address rem_address   st\n{line}")
    monkeypatch.setattr("dfx_agent.hub.access._TABLES", (str(table), str(tmp_path / "none")))
    assert uid_of(("127.0.0.1", 8080), ("127.0.0.1", 9931)) == uid


def test_an_address_that_is_none_belongs_to_nobody():
    assert uid_of(("testclient", 1), ("testserver", 2)) is None
    assert Path("/proc/self/net/tcp").exists()

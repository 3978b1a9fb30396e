"""Who alerts are delivered to in tests: a real Alertmanager, and an HTTP server that remembers."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

from live_processes import started, until

CONFIG = """
route:
  receiver: hook
  group_by: [GROUP_BY]
  group_wait: 200ms
  group_interval: 1s
  repeat_interval: 24h
receivers:
  - name: hook
    webhook_configs: [{url: "HOOK", send_resolved: true}]
inhibit_rules:
  - source_matchers: [alertname="DfxStepStalled"]
    target_matchers: [alertname=~"DfxStageStalled|DfxStraggler|DfxRankImbalance"]
    equal: [job, run]
"""


class Hook:
    """An HTTP server. ``answers`` are the codes of the next answers, then it is always 200."""

    def __init__(self) -> None:
        self.bodies, self.headers, self.answers = [], [], []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                code = hook.answers.pop(0) if hook.answers else 200
                hook.headers.append(dict(self.headers))
                if code == 200:
                    hook.bodies.append(body)
                self.send_response(code)
                if code == 302:
                    self.send_header("Location", hook.url)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST  # noqa: N815 (a redirect that is followed comes as GET)

            def log_message(self, *_) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/hook?key=secret"

    @property
    def told(self) -> list[tuple[str, str, str]]:
        """(status, alert, run) in the order of arrival."""
        return [
            (alert["status"], alert["labels"]["alertname"], alert["labels"]["run"])
            for body in self.bodies
            for alert in body["alerts"]
        ]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def hooked():
    hook = Hook()
    try:
        yield hook
    finally:
        hook.close()


class Alertmanager:
    """A client of a real one."""

    def __init__(self, process, port: int, host="127.0.0.1") -> None:
        self.process = process
        self.url = f"http://{host}:{port}"

    def alerts(self) -> list[dict]:
        with urlopen(f"{self.url}/api/v2/alerts", timeout=10) as response:
            return json.load(response)

    def is_ready(self) -> bool:
        assert self.process.popen.poll() is None, self.process.errors
        try:
            with urlopen(f"{self.url}/-/ready", timeout=10) as response:
                return response.status == 200
        except OSError:
            return False


@contextmanager
def alertmanager(
    binary: str, folder: Path, port: int, hook: Hook, host="127.0.0.1", group_by="job, run"
):
    """Running with its data in ``folder``: the next one there remembers what it has told.

    Grouped by "..." each alert is a message of its own.
    """
    config = folder / "alertmanager.yml"
    group_by = f"'{group_by}'" if group_by == "..." else group_by
    config.write_text(CONFIG.replace("HOOK", hook.url).replace("GROUP_BY", group_by))
    command = [
        binary,
        f"--config.file={config}",
        f"--storage.path={folder / 'data'}",
        f"--web.listen-address={host}:{port}",
        "--cluster.listen-address=",
    ]
    with started(command, folder) as process:
        manager = Alertmanager(process, port, host)
        until(manager.is_ready, "Alertmanager is ready")
        yield manager

"""A rollout server of a policy: answers POST with what its model says; never trains.

``policy_server.py FOLDER``: its port is in FOLDER/port; with a file FOLDER/hold it answers no more.
"""

from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch

folder = Path(sys.argv[1])
policy = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8))


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        if (folder / "hold").exists():
            threading.Event().wait()  # it answers no more
        with torch.inference_mode():
            answer = policy(torch.ones(4, 8)).sum().item()
        body = str(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
(folder / "port.tmp").write_text(str(server.server_address[1]))
(folder / "port.tmp").rename(folder / "port")
server.serve_forever()

"""A rollout server: HTTP, one JSON list of numbers for a request; how long it takes varies."""

from __future__ import annotations

import json
import random
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LONGEST_SECONDS = 6.0


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        number = int(self.path.rsplit("/", 1)[1])
        chance = random.Random(number)
        usual_seconds = chance.uniform(0.1, 0.8)
        time.sleep(LONGEST_SECONDS if number % 41 == 40 else usual_seconds)
        body = json.dumps([chance.gauss(0.0, 1.0) for _ in range(256)]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silent."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()

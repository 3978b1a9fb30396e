"""A server that speaks as vLLM or SGLang do at /metrics, well or badly; also a program.

Text by prometheus_client, as the engines themselves make it. As a program its command line is an
engine's: ``python .../vllm serve MODEL --port N``.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

BUCKETS = (0.01, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

NAMES = {
    "vllm": {
        "running": "vllm:num_requests_running",
        "waiting": "vllm:num_requests_waiting",
        "kv": "vllm:kv_cache_usage_perc",
        "tokens": "vllm:generation_tokens",
        "preemptions": "vllm:num_preemptions",
        "ttft": "vllm:time_to_first_token_seconds",
        "itl": "vllm:inter_token_latency_seconds",
        "queue": "vllm:request_queue_time_seconds",
    },
    "old vllm": {
        "running": "vllm:num_requests_running",
        "waiting": "vllm:num_requests_waiting",
        "kv": "vllm:gpu_cache_usage_perc",
        "tokens": "vllm:generation_tokens",
        "preemptions": "vllm:num_preemptions",
        "ttft": "vllm:time_to_first_token_seconds",
        "itl": "vllm:time_per_output_token_seconds",
        "queue": "vllm:time_in_queue_requests",
    },
    "sglang": {
        "running": "sglang:num_running_reqs",
        "waiting": "sglang:num_queue_reqs",
        "kv": "sglang:token_usage",
        "tokens": "sglang:generation_tokens",
        "preemptions": "sglang:num_retracted_requests",
        "ttft": "sglang:time_to_first_token_seconds",
        "itl": "sglang:inter_token_latency_seconds",
        "queue": "sglang:queue_time_seconds",
    },
}


class ScriptedMetrics:
    """What one engine would tell; a restart is a new one."""

    def __init__(self, generation: str = "vllm", dp_ranks: tuple[str, ...] = ("0",)) -> None:
        names = NAMES[generation]
        self.registry = CollectorRegistry()
        label = "dp_rank" if generation == "sglang" else "engine"
        given = {"labelnames": ["model_name", label], "registry": self.registry}
        self.dp_ranks = dp_ranks
        self.families: dict[str, Any] = {}
        for word, name in names.items():
            if word in {"running", "waiting", "kv"}:
                self.families[word] = Gauge(name, word, **given)
            elif word in {"tokens", "preemptions"}:
                self.families[word] = Counter(name, word, **given)
            else:
                self.families[word] = Histogram(name, word, buckets=BUCKETS, **given)
        for word in names:
            for rank in dp_ranks:
                self.of(word, rank)

    def of(self, word: str, dp_rank: str = "0") -> Any:
        return self.families[word].labels("a-model", dp_rank)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class Handler(BaseHTTPRequestHandler):
    metrics: ClassVar[ScriptedMetrics]
    mode: ClassVar[str] = "healthy"
    num_asked: ClassVar[int] = 0
    seen_headers: ClassVar[list[Any]] = []
    lock: ClassVar[threading.Lock] = threading.Lock()
    released: ClassVar[threading.Event]
    barrier: ClassVar[threading.Barrier]

    def do_GET(self) -> None:
        cls = type(self)
        with cls.lock:
            cls.num_asked += 1
            cls.seen_headers.append(self.headers)
        getattr(self, f"_{cls.mode.replace(' ', '_')}")()

    def _healthy(self) -> None:
        with type(self).lock:
            body = self.metrics.text()
        self._send(body)

    def _together(self) -> None:
        self.barrier.wait(60)
        self._healthy()

    def _slow(self) -> None:
        self.released.wait(30)

    def _garbage(self) -> None:
        self._send(bytes(range(256)) * 40)

    def _prose(self) -> None:
        self._send(b"<html>hello</html>\n")

    def _broken_text(self) -> None:
        self._send(b'vllm:num_requests_running{engine="0} 3\nvllm:num_requests_waiting{ nonsense\n')

    def _error(self) -> None:
        self._send(b"no", 500)

    def _elsewhere(self) -> None:
        self.send_response(302)
        self.send_header("Location", "/other")
        self.end_headers()

    def _endless(self) -> None:
        self.send_response(200)
        self.end_headers()
        line = b"# nothing\n" * 6400
        try:
            while not self.released.is_set():
                self.wfile.write(line)
        except OSError:
            return

    def _dripping(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            while not self.released.wait(0.05):
                self.wfile.write(b"#")
                self.wfile.flush()
        except OSError:
            return

    def _hang_up(self) -> None:
        self.connection.close()

    def _send(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: Any) -> None:
        pass


class ScriptedEngine:
    """``mode``: healthy, slow, garbage, prose, broken text, error, elsewhere, endless, ..."""

    def __init__(self, generation: str = "vllm", dp_ranks: tuple[str, ...] = ("0",), port: int = 0):
        self.generation, self.dp_ranks = generation, dp_ranks
        released = threading.Event()
        members = {"released": released, "lock": threading.Lock(), "seen_headers": []}
        self.handler: Any = type("OneEngine", (Handler,), members)
        self.restart()
        self.server = ThreadingHTTPServer(("127.0.0.1", port), self.handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def restart(self) -> None:
        self.handler.metrics = ScriptedMetrics(self.generation, self.dp_ranks)

    @property
    def metrics(self) -> ScriptedMetrics:
        return self.handler.metrics

    def answers(self, mode: str) -> None:
        self.handler.mode = mode

    def close(self) -> None:
        self.handler.released.set()
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@contextmanager
def scripted_engine(*args: Any, **known: Any) -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine(*args, **known)
    try:
        yield engine
    finally:
        engine.close()


def main(argv: list[str]) -> None:
    """Serves until its standard input ends, with so many requests running and waiting."""
    port = int(argv[argv.index("--port") + 1])
    load = argv[argv.index("--served-model-name") + 1] if "--served-model-name" in argv else "3,0"
    running, waiting = map(float, load.split(",")[:2])
    engine = ScriptedEngine("vllm", port=port)
    print(engine.port, flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), engine.close()), daemon=True).start()
    while engine._thread.is_alive():
        with engine.handler.lock:
            engine.metrics.of("running").set(running)
            engine.metrics.of("waiting").set(waiting)
            engine.metrics.of("kv").set(0.25)
            engine.metrics.of("tokens").inc(5)
            engine.metrics.of("ttft").observe(0.2)
        time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1:])

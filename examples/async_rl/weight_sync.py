"""Sends new weights to the rollout servers: pause, gather, transfer, load, resume."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import urlsplit

from torch import nn

import dfx_agent.shim as dfx
from dfx_agent.commands.demo.faults import Fault
from examples.async_rl.faults import due
from examples.async_rl.settings import REQUEST_TIMEOUT_SECONDS
from examples.async_rl.truth import TruthLog

NUM_CHUNKS = 8


class Receiver:
    """One rollout server; stores the seconds of each part of a sync by name."""

    def __init__(self, replica: int, base_url: str) -> None:
        self.replica = replica
        self.seconds: dict[str, float] = {}
        parts = urlsplit(base_url)
        assert parts.hostname is not None
        self._connection = http.client.HTTPConnection(
            parts.hostname, parts.port, timeout=REQUEST_TIMEOUT_SECONDS
        )

    def pause(self) -> None:
        self._ask("pause", "/pause", b"")

    def transfer(self, payload: bytes, pause_seconds: float) -> None:
        """Send ``payload`` in parts; waits a share of ``pause_seconds`` before each part."""

        def chunks() -> Iterator[bytes]:
            size = -(-len(payload) // NUM_CHUNKS)
            for begin in range(0, len(payload), size):
                time.sleep(pause_seconds / NUM_CHUNKS)
                yield payload[begin : begin + size]

        self._ask("transfer", "/receive_weights", chunks(), num_bytes=len(payload))

    def load(self, version: int) -> None:
        self._ask("load", "/update_weights", json.dumps({"version": version}).encode())

    def resume(self) -> None:
        self._ask("resume", "/resume", b"")

    def _ask(
        self, part: str, path: str, body: bytes | Iterator[bytes], num_bytes: int | None = None
    ) -> None:
        begin_seconds = time.perf_counter()
        headers = {} if num_bytes is None else {"Content-Length": str(num_bytes)}
        self._connection.request("POST", path, body, headers)
        answer = self._connection.getresponse()
        answer.read()
        if answer.status != http.client.OK:
            raise OSError(f"replica {self.replica}: {path} answered {answer.status}")
        self.seconds[part] = time.perf_counter() - begin_seconds


class WeightPublisher:
    """Sends the weights after each step, from the learner's first rank, one part at a time.

    A receiver that does not answer in time receives no more weights; ``lost`` has its number.
    """

    def __init__(self, servers: Sequence[str], faults: tuple[Fault, ...], truth: TruthLog) -> None:
        self.lost: list[int] = []
        self._receivers = [Receiver(replica, url) for replica, url in enumerate(servers)]
        self._slow = self._receivers[-1].replica
        self._faults, self._truth = faults, truth
        self._threads = ThreadPoolExecutor(len(servers), thread_name_prefix="weight-sync")
        self._part_seconds: dict[str, float] = {}

    def publish(self, model: nn.Module, version: int) -> dict[str, float]:
        """Send the weights; returns seconds by part and receiver, and bytes, by reported name."""
        slow = due(self._faults, "slow_weight_sync", version)
        added_seconds = sum(fault.seconds for fault in slow)
        for fault in slow:
            self._truth.injected(fault, version, fault.seconds)
        self._of_each("pause", Receiver.pause)
        with self._part("gather"):
            vector = nn.utils.parameters_to_vector(model.parameters()).detach()
            payload = vector.numpy().tobytes()
        self._of_each(
            "transfer",
            lambda receiver: receiver.transfer(
                payload, added_seconds if receiver.replica == self._slow else 0.0
            ),
        )
        self._of_each("load", lambda receiver: receiver.load(version))
        self._of_each("resume", Receiver.resume)
        return self._sync_metrics(len(payload))

    def _of_each(self, part: str, ask: Callable[[Receiver], None]) -> None:
        with self._part(part):
            asked = [
                (receiver, self._threads.submit(ask, receiver)) for receiver in self._receivers
            ]
            for receiver, answer in asked:
                try:
                    answer.result()
                except OSError:
                    self.lost.append(receiver.replica)
                    self._receivers.remove(receiver)

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        begin_seconds = time.perf_counter()
        with dfx.stage(f"weight_sync_{name}"):
            yield
        self._part_seconds[name] = time.perf_counter() - begin_seconds

    def _sync_metrics(self, num_bytes: int) -> dict[str, float]:
        metrics = {
            f"timing_s/weight_sync_{part}": seconds for part, seconds in self._part_seconds.items()
        }
        metrics["checkpoint_engine/payload_mbytes"] = num_bytes / 2**20
        metrics["weight_sync/lost_receivers"] = len(self.lost)
        for receiver in self._receivers:
            prefix = f"weight_sync/replica_{receiver.replica}"
            metrics[f"{prefix}/bytes"] = num_bytes
            for part, seconds in receiver.seconds.items():
                metrics[f"{prefix}/{part}_seconds"] = seconds
        return metrics

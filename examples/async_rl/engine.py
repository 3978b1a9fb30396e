"""A rollout engine: one thread that batches requests and pauses to load new weights."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import dfx_agent.shim as dfx
from dfx_agent.commands.demo import task
from dfx_agent.commands.demo.faults import Fault
from dfx_agent.commands.demo.model import TinyTransformer
from dfx_agent.commands.demo.sampling import Decoding
from examples.async_rl.engine_metrics import EngineMetrics
from examples.async_rl.faults import due
from examples.async_rl.settings import CONTEXT_LENGTH
from examples.async_rl.truth import TruthLog

MAX_BATCH_SIZE = 8
# how long a request waits for others to share its batch: requests cannot join a running batch
BATCH_WINDOW_SECONDS = 0.01


@dataclass(frozen=True)
class Completion:
    """The generated tokens; ``versions`` has the weight version that chose each token."""

    tokens: list[int]
    logprobs: list[float]
    versions: list[int]
    is_finished: bool  # ended with an end token, not by the token budget


@dataclass
class Request:
    """``tokens`` are the prompt and the tokens already generated for it."""

    tokens: list[int]
    max_tokens: int
    answer: Future[Completion] = field(default_factory=Future)
    arrived_seconds: float = field(default_factory=time.monotonic)
    last_token_seconds: float = 0.0
    versions: list[int] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, int]:
        """Requests can share a batch only if their shapes are equal."""
        return len(self.tokens), self.max_tokens


@dataclass
class _Spent:
    """Seconds and tokens of this engine in one step; ``busy`` is the CPU time of ``compute``."""

    busy_seconds: float = 0.0
    compute_seconds: float = 0.0
    decode_seconds: float = 0.0
    delay_seconds: float = 0.0
    num_tokens: int = 0


class Engine:
    """Serves one replica; all methods but ``run`` may be called from any thread."""

    def __init__(self, replica: int, seed: int, faults: tuple[Fault, ...], truth: TruthLog) -> None:
        torch.manual_seed(seed)
        self.metrics = EngineMetrics()
        self.version = 0
        self._model = TinyTransformer(task.VOCABULARY_SIZE, CONTEXT_LENGTH)
        self._model.requires_grad_(requires_grad=False)
        self._generator = torch.Generator().manual_seed(seed * 1000 + replica)
        self._faults = [fault for fault in faults if fault.replica == replica]
        self._truth = truth
        self._spent = _Spent()
        self._waiting: deque[Request] = deque()
        self._orders: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._is_paused = False
        self._changed = threading.Condition()

    @property
    def step(self) -> int:
        """The current training step."""
        return self.version + 1

    def submit(self, request: Request) -> Future[Completion]:
        request.answer.set_running_or_notify_cancel()  # a request in a batch cannot be cancelled
        with self._changed:
            self._waiting.append(request)
            self.metrics.waiting.set(len(self._waiting))
            self._changed.notify()
        return request.answer

    def pause(self) -> Future[None]:
        """Resolved when the engine is paused; running requests stay in their batch."""
        return self._order(lambda: self._set_paused(is_paused=True))

    def resume(self) -> Future[None]:
        return self._order(lambda: self._set_paused(is_paused=False))

    def load(self, weights: bytearray, version: int) -> Future[None]:
        """``weights`` are all parameters as one float32 vector."""
        return self._order(lambda: self._load(weights, version))

    def run(self) -> None:
        """Serve requests for ever; call it in its own thread."""
        while True:
            batch = self._next_batch()
            with dfx.stage("rollout"):
                self._serve(batch)

    def _order(self, what: Callable[[], Any]) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_running_or_notify_cancel()
        with self._changed:
            self._orders.append((what, done))
            self._changed.notify()
        return done

    def _set_paused(self, *, is_paused: bool) -> None:
        self._is_paused = is_paused

    def _load(self, weights: bytearray, version: int) -> None:
        with dfx.stage("weight_sync"):
            vector = torch.frombuffer(weights, dtype=torch.float32)
            nn.utils.vector_to_parameters(vector, self._model.parameters())
        self._report()
        self.version = version
        dfx.policy_version(version)

    def _report(self) -> None:
        spent, self._spent = self._spent, _Spent()
        self._truth.measured(self.step, vars(spent))
        for fault in due(self._faults, "slow_replica", self.step):
            self._truth.injected(fault, self.step, spent.delay_seconds, spent.num_tokens)

    def _next_batch(self) -> list[Request]:
        """Wait for requests; returns those with the same shape as the oldest one."""
        while True:
            self._obey()
            with self._changed, dfx.wait("queue"):
                if self._waiting:
                    self._changed.wait_for(
                        lambda: self._orders or len(self._waiting) >= MAX_BATCH_SIZE,
                        BATCH_WINDOW_SECONDS,
                    )
                    return self._chosen()
                self._changed.wait_for(lambda: self._waiting or self._orders)

    def _chosen(self) -> list[Request]:
        shape = self._waiting[0].shape
        same_shape = [request for request in self._waiting if request.shape == shape]
        batch = same_shape[:MAX_BATCH_SIZE]
        places = {id(request) for request in batch}
        self._waiting = deque(r for r in self._waiting if id(r) not in places)
        self.metrics.waiting.set(len(self._waiting))
        dfx.queue("engine_waiting", len(self._waiting))
        return batch

    def _obey(self) -> None:
        """Execute orders between two tokens; a pause lasts until the next order."""
        while True:
            with self._changed:
                if self._is_paused and not self._orders:
                    with dfx.wait("policy"):
                        self._changed.wait_for(lambda: self._orders)
                if not self._orders:
                    return
                what, done = self._orders.popleft()
            try:
                done.set_result(what())
            except Exception as error:  # noqa: BLE001 (the caller receives the error)
                done.set_exception(error)

    def _serve(self, batch: list[Request]) -> None:
        now = time.monotonic()
        for request in batch:
            self.metrics.begin(now - request.arrived_seconds, len(request.tokens))
        dfx.tokens("prompt", sum(len(request.tokens) for request in batch))
        inputs = _padded(batch)
        decoding = Decoding(self._model, inputs, batch[0].max_tokens, task.END, self._generator)
        unanswered = list(range(len(batch)))
        while unanswered:
            self._advance(decoding, len(batch))
            unanswered = self._answered(batch, decoding, unanswered)
            self.metrics.running.set(len(unanswered))
            used = len(unanswered) * (inputs.shape[1] + decoding.num_columns)
            self.metrics.kv_cache_usage.set(used / (MAX_BATCH_SIZE * CONTEXT_LENGTH))
            self._obey()

    def _advance(self, decoding: Decoding, num_requests: int) -> None:
        """Generate one token of each response, slowed down by the active faults."""
        for fault in due(self._faults, "stuck_server", self.step):
            self._truth.injected(fault, self.step, num_requests)
            while True:
                time.sleep(3600)
        begin_seconds, begin_busy = time.perf_counter(), time.thread_time()
        decoding.advance()
        busy_seconds = time.thread_time() - begin_busy
        compute_seconds = time.perf_counter() - begin_seconds
        for fault in due(self._faults, "slow_replica", self.step):
            time.sleep((fault.factor - 1) * busy_seconds)
        decode_seconds = time.perf_counter() - begin_seconds
        self._spent.busy_seconds += busy_seconds
        self._spent.compute_seconds += compute_seconds
        self._spent.decode_seconds += decode_seconds
        self._spent.delay_seconds += decode_seconds - compute_seconds

    def _answered(
        self, batch: list[Request], decoding: Decoding, unanswered: list[int]
    ) -> list[int]:
        """Answer requests that now have their last token; returns the unfinished rows."""
        now, end = time.monotonic(), decoding.num_columns
        chosen = decoding.responses.tokens[:, end - 1].tolist()
        self._spent.num_tokens += len(unanswered)
        dfx.tokens("response", len(unanswered))
        unfinished = []
        for row in unanswered:
            request = batch[row]
            self.metrics.token(now, request.arrived_seconds, request.last_token_seconds)
            request.last_token_seconds = now
            request.versions.append(self.version)
            if chosen[row] != task.END and end < request.max_tokens:
                unfinished.append(row)
                continue
            is_finished = chosen[row] == task.END
            self.metrics.end(now - request.arrived_seconds, is_finished=is_finished)
            tokens = decoding.responses.tokens[row, :end].tolist()
            logprobs = decoding.responses.logprobs[row, :end].tolist()
            request.answer.set_result(Completion(tokens, logprobs, request.versions, is_finished))
        return unfinished


def _padded(batch: Sequence[Request]) -> torch.Tensor:
    """(MAX_BATCH_SIZE, P): padded like real engines pad to the batch size of their CUDA graphs.

    The time per token then does not depend on the number of requests in the batch.
    """
    rows = [request.tokens for request in batch]
    return torch.tensor([*rows, *(rows[:1] * (MAX_BATCH_SIZE - len(rows)))])

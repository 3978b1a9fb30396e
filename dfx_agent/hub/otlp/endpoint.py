"""``/v1/logs`` and ``/v1/traces``: a receiver of OTLP whose every request has an end.

In bytes, plain and packed, and in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from urllib.parse import urlencode

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from dfx_agent.base.text import plain
from dfx_agent.facts import envelope
from dfx_agent.hub.otlp import requests
from dfx_agent.hub.otlp.body_reader import TooLargeError
from dfx_agent.hub.otlp.intake import Intake
from dfx_agent.hub.otlp.traces import ReceivedSpan

MAX_BODY_BYTES = 8 << 20
MAX_PLAIN_BYTES = 64 << 20
BODY_SECONDS = 10.0
# bodies that are held at a time, and requests that wait for their turn
_AT_ONCE, _WAITING = 8, 2048
_THREADS = 2

# takes spans: how many of them are left out, and why the first was
TakeSpans = Callable[[Sequence[ReceivedSpan]], tuple[int, str]]


def route(intake: Intake) -> Route:
    return Route(envelope.LOGS_PATH, _Logs(intake).post, methods=["POST"])


class _Refusal(Exception):  # noqa: N818 (no error of ours)
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Endpoint:
    """``receive`` runs in a thread and returns (body of the answer, its headers)."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._threads: CapacityLimiter | None = None
        self._num_waiting = 0

    async def post(self, request: Request) -> Response:
        node = _node(request)
        try:
            _check_type(request)
            body, more = await self._take(request, node)
        except _Refusal as refusal:
            if refusal.status != 503:
                await run_sync(self.refused, node, str(refusal))
            return self._answer(refusal.status, requests.refusal(str(refusal)))
        except ClientDisconnect:
            return self._answer(400, b"")
        return self._answer(200, body, more)

    def receive(self, body: bytes, encoding: str, node: str) -> tuple[bytes, dict[str, str]]:
        raise NotImplementedError

    def refused(self, node: str, message: str) -> None:
        """A request of ``node`` could not be read."""
        raise NotImplementedError

    def headers(self) -> dict[str, str]:
        """Headers of every answer."""
        return {}

    async def _take(self, request: Request, node: str) -> tuple[bytes, dict[str, str]]:
        if self._num_waiting >= _WAITING:
            raise _Refusal(503, "too many nodes send at once")
        self._num_waiting += 1
        try:
            async with self._turns:
                body = await _body(request)
                encoding = request.headers.get("content-encoding", "").strip().lower()
                self._threads = self._threads or CapacityLimiter(_THREADS)
                return await run_sync(self._read, body, encoding, node, limiter=self._threads)
        finally:
            self._num_waiting -= 1

    def _read(self, body: bytes, encoding: str, node: str) -> tuple[bytes, dict[str, str]]:
        try:
            return self.receive(body, encoding, node)
        except TooLargeError as error:
            raise _Refusal(413, str(error)) from None
        except ValueError as error:
            raise _Refusal(400, str(error)) from None

    def _answer(self, status: int, body: bytes, more: dict[str, str] | None = None) -> Response:
        headers = {**self.headers(), **(more or {})}
        if status == 503:
            headers["Retry-After"] = "1"
        return Response(body, status, headers, media_type=requests.CONTENT_TYPE)


class _Logs(_Endpoint):
    """Receives facts of nodes."""

    def __init__(self, intake: Intake) -> None:
        super().__init__()
        self._intake = intake

    def receive(self, body: bytes, encoding: str, node: str) -> tuple[bytes, dict[str, str]]:
        result = self._intake.take(requests.read_records(body, encoding, MAX_PLAIN_BYTES), node)
        more = {envelope.WANTS_ALL: "1"} if result.wants_all else {}
        more |= {envelope.CALLED: urlencode(result.called)} if result.called else {}
        return requests.answer_records(result.num_refused, result.message), more

    def refused(self, node: str, message: str) -> None:
        self._intake.refuse(node, message)

    def headers(self) -> dict[str, str]:
        return {
            envelope.HUB_ID: self._intake.hub_id,
            envelope.EVERY_SECONDS: f"{self._intake.every_seconds:.1f}",
            **({envelope.DELIVERS: "1"} if self._intake.delivers else {}),
        }


class Traces(_Endpoint):
    """Receives spans of a job. ``refuse`` counts spans or requests that could not be read."""

    def __init__(self, take: TakeSpans, refuse: Callable[[str, int], None]) -> None:
        super().__init__()
        self._take_spans, self._refuse = take, refuse

    def receive(self, body: bytes, encoding: str, node: str) -> tuple[bytes, dict[str, str]]:
        del node
        found = requests.read_spans(body, encoding, MAX_PLAIN_BYTES)
        num_left_out, message = self._take_spans(found.items)
        if found.num_left_out:
            large = f"spans of more than {requests.MAX_SPAN_BYTES >> 10} KiB"
            self._refuse(large, found.num_left_out)
            num_left_out, message = num_left_out + found.num_left_out, message or large
        return requests.answer_spans(num_left_out, message), {}

    def refused(self, node: str, message: str) -> None:
        self._refuse(f"a request of {node}: {message}", 1)


def _node(request: Request) -> str:
    """Name that the sender gives itself, else its address."""
    named = plain(request.headers.get(envelope.NODE_HEADER, ""))[:256]
    return named or (request.client.host if request.client else "unknown")


def _check_type(request: Request) -> None:
    """A page in a browser may only send this type after asking first."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != requests.CONTENT_TYPE:
        raise _Refusal(415, f"Content-Type {plain(given)[:80]!r}: send {requests.CONTENT_TYPE}")


async def _body(request: Request) -> bytes:
    try:
        return await asyncio.wait_for(_read_body(request), BODY_SECONDS)
    except asyncio.TimeoutError:
        raise _Refusal(408, f"no whole request within {BODY_SECONDS:.0f} s") from None


async def _read_body(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise _Refusal(413, f"more than {MAX_BODY_BYTES >> 20} MiB")
        parts.append(part)
    return b"".join(parts)

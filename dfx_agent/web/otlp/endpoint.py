"""``/v1/logs`` of a hub: an OTLP receiver whose every request has an end, in bytes and in time."""

from __future__ import annotations

import asyncio

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from dfx_agent.facts import envelope
from dfx_agent.plain_text import plain
from dfx_agent.web.otlp import records
from dfx_agent.web.otlp.intake import Intake, Taken

MAX_BODY_BYTES = 8 << 20
MAX_PLAIN_BYTES = 64 << 20
BODY_SECONDS = 10.0
# bodies that are held at a time, and requests that wait for their turn
_AT_ONCE, _WAITING = 8, 2048
_THREADS = 2


def route(intake: Intake) -> Route:
    return Route(envelope.LOGS_PATH, _Endpoint(intake).post, methods=["POST"])


class _Refusal(Exception):  # noqa: N818 (no error of ours)
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Endpoint:
    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._threads: CapacityLimiter | None = None
        self._num_waiting = 0

    async def post(self, request: Request) -> Response:
        node = _node(request)
        try:
            _check_type(request)
            taken = await self._take(request, node)
        except _Refusal as refusal:
            if refusal.status != 503:
                await run_sync(self._intake.refuse, node, str(refusal))
            return self._answer(refusal.status, records.refusal(str(refusal)))
        except ClientDisconnect:
            return self._answer(400, b"")
        body = records.answer(taken.num_refused, taken.message)
        more = {envelope.WANTS_ALL: "1"} if taken.wants_all else {}
        return self._answer(200, body, more)

    async def _take(self, request: Request, node: str) -> Taken:
        if self._num_waiting >= _WAITING:
            raise _Refusal(503, "too many nodes tell something at once")
        self._num_waiting += 1
        try:
            async with self._turns:
                body = await _body(request)
                encoding = request.headers.get("content-encoding", "").strip().lower()
                self._threads = self._threads or CapacityLimiter(_THREADS)
                return await run_sync(self._read, body, encoding, node, limiter=self._threads)
        finally:
            self._num_waiting -= 1

    def _read(self, body: bytes, encoding: str, node: str) -> Taken:
        try:
            request = records.read(body, encoding, MAX_PLAIN_BYTES)
        except records.TooLargeError as error:
            raise _Refusal(413, str(error)) from None
        except ValueError as error:
            raise _Refusal(400, str(error)) from None
        return self._intake.take(request, node)

    def _answer(self, status: int, body: bytes, more: dict[str, str] | None = None) -> Response:
        headers = {
            envelope.HUB_ID: self._intake.hub_id,
            envelope.EVERY_SECONDS: f"{self._intake.every_seconds:.1f}",
            **({envelope.DELIVERS: "1"} if self._intake.delivers else {}),
            **(more or {}),
        }
        if status == 503:
            headers["Retry-After"] = "1"
        return Response(body, status, headers, media_type=records.CONTENT_TYPE)


def _node(request: Request) -> str:
    """As it names itself, else its address."""
    named = plain(request.headers.get(envelope.NODE_HEADER, ""))[:256]
    return named or (request.client.host if request.client else "unknown")


def _check_type(request: Request) -> None:
    """No page in a browser may send this type without being asked first."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != records.CONTENT_TYPE:
        raise _Refusal(415, f"Content-Type {plain(given)[:80]!r}: send {records.CONTENT_TYPE}")


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

"""One GET of /metrics, limited in time and size, without any proxy."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from dfx_agent.base.text import plain
from dfx_agent.node.engines.exposition import NotMetricsError
from dfx_agent.snapshot import EngineState

if TYPE_CHECKING:
    import httpx

MAX_BYTES = 4 * 1024 * 1024
ANSWER_SECONDS = 1.0
# no connection stays open: a server that shuts down would wait for it
_HEADERS = {"Accept": "text/plain", "Accept-Encoding": "identity", "Connection": "close"}


class NoReadingError(Exception):
    """Nothing was read; ``state`` is the resulting state of the engine."""

    def __init__(self, state: EngineState, reason: str) -> None:
        super().__init__(reason)
        self.state: EngineState = state


def client(seconds: float = ANSWER_SECONDS) -> httpx.AsyncClient:
    """Connects directly: proxy variables of the environment do not apply."""
    from dfx_agent.base.lean_httpx import httpx  # noqa: PLC0415 (0.1 s of every start)

    return httpx.AsyncClient(
        trust_env=False, follow_redirects=False, timeout=seconds, headers=_HEADERS
    )


async def ask(client: httpx.AsyncClient, url: str, seconds: float) -> str:
    """The whole text. Raises NoReadingError if there is none."""
    from dfx_agent.base.lean_httpx import httpx  # noqa: PLC0415 (0.1 s of every start)

    try:
        return await asyncio.wait_for(_text(client, url), seconds)
    except (asyncio.TimeoutError, httpx.TimeoutException):
        raise NoReadingError("slow", f"no whole answer within {seconds:g} s") from None
    except httpx.ConnectError as error:
        raise NoReadingError("gone", _line("no answer", error)) from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        raise NoReadingError("garbage", _line("the answer was cut off", error)) from None


async def _text(client: httpx.AsyncClient, url: str) -> str:
    async with client.stream("GET", url) as answer:
        if answer.status_code != 200:
            raise NoReadingError("garbage", f"HTTP status {answer.status_code}")
        if answer.headers.get("content-encoding", "identity") != "identity":
            raise NoReadingError("garbage", "an unexpected compressed answer")
        body = bytearray()
        async for piece in answer.aiter_raw():
            body += piece
            if len(body) > MAX_BYTES:
                raise NoReadingError("garbage", f"more than {MAX_BYTES >> 20} MiB")
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise NotMetricsError("not UTF-8 text") from None


def _line(what: str, error: Exception) -> str:
    text = plain(" ".join(str(error).split()))[:120]
    return f"{what}: {text or type(error).__name__}"

"""``/v1/traces``: receives spans of jobs, on a node's agent and on a hub.

What reads them is loaded with the first request: most agents never get one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dfx_agent.facts import envelope

Attributes = Mapping[str, str | int]

# attributes that assign a span to a step of a rank; other attributes are not stored
STEPS = ("dfx.step", "global_step", "step")
RANKS, ROLES, RUNS = ("dfx.rank", "rank"), ("dfx.role", "role"), ("dfx.run", "service.namespace")
SERVICE, INSTANCE, HOST = "service.name", "service.instance.id", "host.name"
READ_ATTRIBUTES = frozenset({*STEPS, *RANKS, *ROLES, *RUNS, SERVICE, INSTANCE, HOST})


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """One span that has ended. Times are Unix nanoseconds of the sender's clock.

    ``parent``: b"" for the root of a trace. ``resource``: attributes of its process.
    """

    name: str
    trace: bytes
    span: bytes
    parent: bytes
    begin_ns: int
    end_ns: int
    attributes: Attributes
    resource: Attributes


class SpansTaker(Protocol):
    """Assigns received spans to steps of ranks."""

    def take(self, spans: Sequence[ReceivedSpan]) -> tuple[int, str]:
        """(number of spans that are left out, why the first one was)."""

    def refuse(self, message: str, num_spans: int) -> None:
        """This many spans, or a request, could not be read."""


def route(taker: SpansTaker) -> Route:
    return Route(envelope.TRACES_PATH, _Late(taker).post, methods=["POST"])


class _Late:
    def __init__(self, taker: SpansTaker) -> None:
        self._taker = taker
        self._endpoint: Any = None
        self._loading = asyncio.Lock()

    async def post(self, request: Request) -> Response:
        async with self._loading:
            if self._endpoint is None:
                self._endpoint = await run_sync(self._loaded)
        response: Response = await self._endpoint.post(request)
        return response

    def _loaded(self) -> Any:
        from dfx_agent.hub.otlp.endpoint import Traces  # noqa: PLC0415 (see above)

        return Traces(self._taker.take, self._taker.refuse)

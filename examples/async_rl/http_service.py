"""Serves HTTP on a socket that the parent process has bound, so that ports never collide."""

from __future__ import annotations

import socket
import traceback

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route


def _answer_error(_request: Request, error: Exception) -> Response:
    if not isinstance(error, ClientDisconnect):  # the client has given up and reports it
        traceback.print_exception(error)
    return Response(status_code=500)


class HttpService:
    """uvicorn on a listening socket, without console output."""

    def __init__(self, routes: list[Route], descriptor: int) -> None:
        config = uvicorn.Config(
            Starlette(routes=routes, exception_handlers={Exception: _answer_error}),
            log_config=None,
            log_level="critical",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
            timeout_keep_alive=3600,
        )
        self._server = uvicorn.Server(config)
        self._socket = socket.socket(fileno=descriptor)

    async def serve(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        await self._server.serve(sockets=[self._socket])

    def stop(self) -> None:
        self._server.should_exit = True

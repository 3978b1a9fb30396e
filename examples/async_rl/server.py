"""One rollout server: the demo's model over HTTP, with endpoints to update its weights.

POST /generate          {"tokens": [...], "max_tokens": N}: see ``engine.Completion``
POST /pause, /resume    running requests stay in their batch during a pause
POST /receive_weights   all parameters as float32
POST /update_weights    {"version": N}: load the received weights; only while paused
GET  /metrics           under vLLM's names
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import threading

import torch
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import dfx_agent.shim as dfx
from examples.async_rl import lifeline
from examples.async_rl.engine import Engine, Request
from examples.async_rl.faults import NUM_REPLICAS
from examples.async_rl.http_service import HttpService
from examples.async_rl.options import add_shared, shared
from examples.async_rl.truth import TruthLog


class Endpoints:
    """The HTTP endpoints of the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._received = bytearray()

    def routes(self) -> list[Route]:
        return [
            Route("/generate", self.generate, methods=["POST"]),
            Route("/pause", self.pause, methods=["POST"]),
            Route("/receive_weights", self.receive_weights, methods=["POST"]),
            Route("/update_weights", self.update_weights, methods=["POST"]),
            Route("/resume", self.resume, methods=["POST"]),
            Route("/metrics", self.metrics),
        ]

    async def generate(self, asked: HttpRequest) -> Response:
        body = await asked.json()
        request = Request(body["tokens"], body["max_tokens"])
        completion = await asyncio.wrap_future(self._engine.submit(request))
        return JSONResponse(dataclasses.asdict(completion))

    async def pause(self, _asked: HttpRequest) -> Response:
        await asyncio.wrap_future(self._engine.pause())
        return JSONResponse({})

    async def receive_weights(self, asked: HttpRequest) -> Response:
        self._received = bytearray(await asked.body())
        return JSONResponse({"bytes": len(self._received)})

    async def update_weights(self, asked: HttpRequest) -> Response:
        version = int((await asked.json())["version"])
        await asyncio.wrap_future(self._engine.load(self._received, version))
        return JSONResponse({})

    async def resume(self, _asked: HttpRequest) -> Response:
        await asyncio.wrap_future(self._engine.resume())
        return JSONResponse({})

    async def metrics(self, _asked: HttpRequest) -> Response:
        return Response(self._engine.metrics.exposition(), media_type="text/plain; version=0.0.4")


def main() -> None:
    parser = argparse.ArgumentParser(prog="rollout_server")
    add_shared(parser)
    parser.add_argument("--replica", type=int, required=True)
    parser.add_argument("--socket", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    replica = options.replica
    dfx.init(role="rollout", framework="verl", rank=replica, world_size=NUM_REPLICAS)
    seed, faults, truth_folder = shared(options)
    engine = Engine(replica, seed, faults, TruthLog(truth_folder, f"rollout {replica}"))
    service = HttpService(Endpoints(engine).routes(), options.socket)
    lifeline.on_stop(service.stop)
    threading.Thread(target=engine.run, name="engine", daemon=True).start()
    lifeline.run(service.serve())


if __name__ == "__main__":
    main()

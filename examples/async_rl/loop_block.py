"""What really blocks an event loop in the field: serialising rollouts, and joining them badly."""

from __future__ import annotations

import json
import time

_ROLLOUT = {"prompt": list(range(64)), "logprobs": [0.1] * 256, "text": "1704." * 64}


def block(seconds: float) -> float:
    """Hold the calling thread for ``seconds`` with both, half each; the seconds that it took."""
    begin_seconds = time.perf_counter()
    serialise_rollouts(begin_seconds + seconds / 2)
    join_quadratically(begin_seconds + seconds)
    return time.perf_counter() - begin_seconds


def serialise_rollouts(until_seconds: float) -> None:
    """JSON of one rollout after the other, until ``time.perf_counter()`` is there."""
    while time.perf_counter() < until_seconds:
        json.dumps(_ROLLOUT)


def join_quadratically(until_seconds: float) -> None:
    """Bytes that are copied whole each time some are added; anew from 4 MiB."""
    chunk = json.dumps(_ROLLOUT).encode()
    payload = b""
    while time.perf_counter() < until_seconds:
        payload = payload + chunk
        if len(payload) > 4 * 2**20:
            payload = b""

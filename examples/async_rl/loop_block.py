"""Typical causes of a blocked event loop: serialising rollouts, and joining bytes quadratically."""

from __future__ import annotations

import json
import time

_ROLLOUT = {"prompt": list(range(64)), "logprobs": [0.1] * 256, "text": "1704." * 64}


def block(seconds: float) -> float:
    """Block the calling thread with both, for half of ``seconds`` each; returns the real time."""
    begin_seconds = time.perf_counter()
    serialise_rollouts(begin_seconds + seconds / 2)
    join_quadratically(begin_seconds + seconds)
    return time.perf_counter() - begin_seconds


def serialise_rollouts(until_seconds: float) -> None:
    """Encode rollouts as JSON until ``time.perf_counter()`` reaches ``until_seconds``."""
    while time.perf_counter() < until_seconds:
        json.dumps(_ROLLOUT)


def join_quadratically(until_seconds: float) -> None:
    """Append to bytes, which copies all of them each time; starts again with none at 4 MiB."""
    chunk = json.dumps(_ROLLOUT).encode()
    payload = b""
    while time.perf_counter() < until_seconds:
        payload = payload + chunk
        if len(payload) > 4 * 2**20:
            payload = b""

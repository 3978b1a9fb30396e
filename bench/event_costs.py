"""What each event of the guest takes in a loop of equal calls, which is the least that it takes.

What a hook takes in a real job, whose caches are cold, is measured by bench/timed_in_place.py.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

import torch  # noqa: F401 (the guest then asks it whether it is compiling)
from opentelemetry.sdk.trace import TracerProvider

import dfx_agent.shim as dfx
from bench.calls import Case, block_means_ns
from bench.estimates import median
from bench.hooked_calls import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    Added,
    added_by_hooks,
)
from dfx_agent.shim import recorder
from dfx_agent.shim.torch.hooks import torch_hooks

SPAN, COUNTER, NUMBER, NEXT_STEP = "stage", "count", "scalar", "set_step"
CALLS = (
    Case(SPAN, "with stage('rollout'): pass"),
    Case("wait", "with wait('barrier'): pass"),
    Case(NUMBER, "scalars({'actor/ppo_kl': 0.5}, step=7)"),
    Case("tokens", "tokens('response', 64)"),
    Case("queue", "queue('pending', 3)"),
    Case("policy_version", "policy_version(7)"),
    Case(COUNTER, "count('bench', 1)"),
    Case(NEXT_STEP, "set_step(7)"),
)
TELEMETRY = Case("OpenTelemetry span", "with start('rollout'): pass")
HOOKS_WITH_SPAN = (BACKWARD, OPTIMIZER, FORWARD)


@dataclass(frozen=True)
class EventCosts:
    """``ns``: median by name of the event; ``added``: the hooks with what they were timed on."""

    ns: Mapping[str, float]
    added: Mapping[str, Added]
    telemetry_ns: float


def event_costs(*, quick: bool) -> EventCosts:
    """Measured here and now, in this process, which must not use torch.distributed otherwise."""
    with tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm") as folder:
        dfx.init(run="bench", directory=folder)
        torch_hooks._stop_watching()  # its looks for models would fall into the blocks
        start = TracerProvider().get_tracer("bench").start_as_current_span
        assert recorder.current is not None
        names = {name: getattr(dfx, name) for name in dfx.__all__}
        names |= {"start": start, "count": recorder.current.count}
        means = block_means_ns(
            [*CALLS, TELEMETRY], names, 3 if quick else 100, 50 if quick else 500
        )
        added = added_by_hooks(start, quick=quick)
        dfx.shutdown()
    ns = {name: median(blocks) for name, blocks in means.items()}
    ns |= {name: max(0.0, hook.ns) for name, hook in added.items()}
    for name in HOOKS_WITH_SPAN:
        ns[name] = max(0.0, ns[name] - ns[SPAN])
    return EventCosts(ns, added, ns.pop(TELEMETRY.name))

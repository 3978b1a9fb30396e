"""A rank that has everything that a rank can have."""

from __future__ import annotations

import dataclasses

from prometheus_page import SPLIT, rank_row

from dfx_agent.snapshot import (
    CollectiveTime,
    DeviceMemory,
    GlibcHeap,
    GroupRow,
    HeldMemory,
    HostMemory,
    LedgerRow,
    Moments,
    NonAllocatorMemory,
    OpenSpan,
    RankRow,
    ScalarRow,
    StageStamp,
)

BY_ARRIVAL = CollectiveTime("0", "backward", "arrival", 12, 4096.0, 1.5, 0.25, 0.0)
BATCH = LedgerRow("rollout", 1, 8, None, None, None, "0", "0", 1, 0, 0, 0, 0, None, num_tokens=96)
COUNTS = (
    "micro_batches", "optimizer_steps", "skipped_updates", "nonfinite_gradients", "new",
    "failures/reward",
)  # fmt: skip
ONE = Moments.of_value(1.0)


def full_rank() -> RankRow:
    """A rank that has everything."""
    scalars = [
        ScalarRow("actor/lr", "dfx_learning_rate", {"model": "actor"}, 1, 1.0, ONE),
        ScalarRow("torch/loss", "dfx_loss", {}, 1, 1.0, ONE),
        ScalarRow("torch/grad_norm", "dfx_grad_norm", {}, 1, 1.0, ONE),
        ScalarRow("my/own", None, {}, 1, 1.0, ONE),
    ]
    spans = (
        OpenSpan("stage", "backward", 1.0, 9.0, 1),
        OpenSpan("collective", "all_reduce@0", 2.0, 3.0, None, 1234),
    )
    return rank_row(
        step=1, policy_version=2, last=SPLIT, tokens_total={"response": 3.0}, inflight=spans,
        queue_depth={"q": 1.0}, scalars=tuple(scalars), stamps=(StageStamp("idle", 0, 1.0, 2.0),),
        counters_total=dict.fromkeys(COUNTS, 2.0),
        gauges={
            "patch/ddp": -1.0, "patch/backward": 1.0, "guest/overhead_ratio": 0.001,
            "guest/given_up": 2.0, "adapter/verl/driver/0.9.1": 1.0,
            "delivered/verl/driver/0.9.1": 1.0, "adapter/verl/tracking/0.9.1": 1.0,
        },
        collectives=(BY_ARRIVAL, dataclasses.replace(BY_ARRIVAL, method="duration")),
        groups=(GroupRow("0", 7, 6, 0.43),),
        ledger=(BATCH,),
        devices=(
            DeviceMemory(
                "cuda:0", 3.0, 4.0, 8.0, 1.0, 0.0, {"rollout": 3.5}, 3.0, 0.5, 0.25,
                {"rollout": 3.0}, {"rollout": 4.0}, {"rollout": 1.0}, {"rollout": 1.0},
            ),
        ),
        host_memory=HostMemory(
            9.0, 0.5, GlibcHeap(8.0, 2.0, 1.0), 10.0, 20.0, {"rollout": 9.0}, {"rollout": 19.0}
        ),
        held=(
            HeldMemory("actor_update", "end/offload", "cuda:0", 1.0, 2.0),
            HeldMemory("actor_update", "end/offload", "host", None, None, 9.0, 19.0),
        ),
        beside_allocator=NonAllocatorMemory(7.0, 5.0, 9.0),
    )  # fmt: skip

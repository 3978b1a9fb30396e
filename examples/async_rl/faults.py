"""``--fault SPEC`` of the asynchronous pipeline.

Uses only the standard library, like ``demo/faults.py``, whose parser also reads these faults.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dfx_agent.commands.demo import faults
from dfx_agent.commands.demo.faults import Fault, FaultError

NUM_REPLICAS = 2
NUM_RANKS = 2
GRAMMAR = {
    "slow_replica": "slow_replica:REPLICA:FACTOR[:STEP]",
    "slow_tool": "slow_tool:SECONDS[:STEP]",
    "stuck_server": "stuck_server:REPLICA[:STEP]",
    "slow_barrier": "slow_barrier:RANK:SECONDS[:STEP]",
    "blocked_loop": "blocked_loop:SECONDS[:STEP]",
    "stale_samples": "stale_samples[:STEP]",
    "starved_learner": "starved_learner[:STEP]",
    "slow_weight_sync": "slow_weight_sync:SECONDS[:STEP]",
    "leak": "leak:MIB_PER_STEP[:STEP]",
    # faults of the training itself, as those of the demo
    "divergence": "divergence[:STEP]",
    "entropy_collapse": "entropy_collapse[:STEP]",
    "length_explosion": "length_explosion[:STEP]",
    "nan": "nan[:STEP]",
}
# The faulty component, named as in a verdict.
COMPONENTS = {
    "slow_replica": "rollout replica {replica}",
    "slow_tool": "tool calculator",
    "stuck_server": "rollout replica {replica}",
    "slow_barrier": "trainer rank {rank}",
    "blocked_loop": "orchestrator event loop",
    "stale_samples": "orchestrator queue",
    "starved_learner": "orchestrator concurrency",
    "slow_weight_sync": "weight transfer to rollout replica 1",
    "leak": "orchestrator memory",
    "divergence": "trainer",
    "entropy_collapse": "trainer",
    "length_explosion": "trainer",
    "nan": "trainer",
}


def parse(specs: Iterable[str]) -> tuple[Fault, ...]:
    """FaultError for a fault that this pipeline lacks, or an unknown rank or replica."""
    parsed = tuple(faults.parse(spec, GRAMMAR) for spec in specs)
    for fault in parsed:
        if fault.replica >= NUM_REPLICAS:
            raise FaultError(
                f"--fault {fault.kind}: there is no replica {fault.replica}; "
                f"there are {NUM_REPLICAS}, counted from 0"
            )
    faults.check(parsed, NUM_RANKS)
    return parsed


def component(fault: Fault) -> str:
    return COMPONENTS[fault.kind].format(replica=fault.replica, rank=fault.rank)


def due(faults_of_run: Sequence[Fault], kind: str, step: int) -> list[Fault]:
    """The faults of ``kind`` that are active in ``step``."""
    return [fault for fault in faults_of_run if fault.kind == kind and step >= fault.step]

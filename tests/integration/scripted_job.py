"""A make-believe job of N ranks that writes what real guests would, through the real wire.

scripted_job.py NUM_RANKS [STRAGGLER [STEP_SECONDS]]     steps (of 1 s) for ever, in $DFX_DIR

One process writes all segments. It has what a demo on a CPU lacks: devices that fill up, waits for
data, a hook that failed, a critic, several nodes, and a segment that no agent can read.
"""

import heapq
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from dfx_agent.wire import Identity, SegmentWriter
from dfx_agent.wire.records import (
    BLOCKING,
    COLLECTIVE,
    COUNT,
    GAUGE,
    GROUP,
    NO_STEP,
    POLICY_VERSION,
    QUEUE,
    SCALAR,
    STAGE,
    STEP,
    TOKENS,
    WAIT,
)
from dfx_agent.wire.segment import default_directory

NO_THREAD = 1 << 23  # above any pid: whether the host let this script run says nothing of a rank
RANKS_PER_NODE = 8
QUEUE_NS, TRANSFER_NS, SHORT_NS = 60_000_000, 20_000_000, 30_000_000
GIB = float(1 << 30)
# Share of the step, up to the point where this rank's gradients are ready.
WORK = {"rollout": 0.30, "reward": 0.02, "old_logprob": 0.06, "ref_logprob": 0.06, "forward": 0.06,
        "backward": 0.12}  # fmt: skip
HOOKS = {"backward": 1.0, "collectives": 1.0, "ddp": 1.0, "grad_scaler": 0.0, "optimizer": -1.0}


Stretch = tuple[str, int, int]  # stage, begin, end
Open = tuple[int, int, int, int, int, int]  # slot, begin, span, parent, kind, name


class ScriptedRank:
    """One rank; ``slowness`` is what its work takes, against the others."""

    def __init__(
        self, folder: str, rank: int, num_ranks: int, slowness: float, step_ns: int
    ) -> None:
        node, local = divmod(rank, RANKS_PER_NODE)
        identity = Identity(
            run="scripted", role="actor", framework="verl", host=f"node-{node:02d}", rank=rank,
            local_rank=local, world_size=num_ranks, node_rank=node,
        )  # fmt: skip
        self.segment = SegmentWriter(folder, identity, num_records=4096)
        self.rank = rank
        self.slowness = slowness
        self.step_ns = step_ns
        self.names: dict[str, int] = {}
        self.span = 0
        self.sequence = 0

    def name(self, text: str) -> int:
        if text not in self.names:
            self.names[text] = self.segment.add_name(text)
        return self.names[text]

    def open(self, kind: int, name: str, begin: int, step: int, parent: int = 0) -> Open:
        """The span is in the in-flight table from now on."""
        self.span += 1
        name_id = self.name(name)
        slot = self.segment.inflight.enter(begin, step, self.span, parent, 1, kind, name_id)
        return slot, begin, self.span, parent, kind, name_id

    def close(self, span: Open, end: int, step: int, *, flags: int = 0, value: float = 0.0) -> None:
        slot, begin, number, parent, kind, name_id = span
        self.segment.emit(begin, end, value, step, number, parent, 1, kind | flags, name_id)
        self.segment.inflight.leave(slot)

    def point(self, kind: int, name: str, value: float, at: int, step: int = NO_STEP) -> None:
        self.segment.emit(at, at, value, step, 0, 0, 0, kind, self.name(name) if name else 0)

    def work(self, step: int, begin: int) -> list[Stretch]:
        """(stage, begin, end) of the step, up to where this rank's gradients are ready."""
        noise = random.Random(f"{self.rank}:{step}")
        found, at = [], begin + QUEUE_NS
        for stage, share in WORK.items():
            end = at + int(share * self.slowness * noise.uniform(0.97, 1.03) * self.step_ns)
            found.append((stage, at, end))
            at = end
        return found

    def course(self, step: int, begin: int, work: list[Stretch], meet: int) -> Iterator[int]:
        """Writes a step; yields when it goes on. ``meet``: the last rank's gradients are ready."""
        self.segment.emit(begin, begin, 0.0, step, 0, 0, NO_THREAD, STEP, 0)
        span = self.open(WAIT, "queue", begin, step)
        yield begin + QUEUE_NS
        self.close(span, begin + QUEUE_NS, step)
        for stage, t0, t1 in work[:-1]:
            span = self.open(STAGE, stage, t0, step)
            yield t1
            self.close(span, t1, step)
        _, t0, ready = work[-1]
        backward = self.open(STAGE, "backward", t0, step)
        yield ready
        self.sequence += 1
        reduction = self.open(COLLECTIVE, "ddp_gradients@0", ready, self.sequence, backward[2])
        at = meet + TRANSFER_NS
        yield at
        self.close(reduction, at, self.sequence, flags=BLOCKING, value=6.4e7)
        self.close(backward, at, step)
        for stage in ("optimizer", "weight_sync", *(["checkpoint"] if step % 5 == 0 else [])):
            span = self.open(STAGE, stage, at, step)
            at += SHORT_NS
            yield at
            self.close(span, at, step)
        self.write_points(step, at)

    def write_points(self, step: int, at: int) -> None:
        self.point(GROUP, "0", float(self.sequence), at, self.sequence)
        self.point(TOKENS, "prompt", 4000.0, at, step)
        self.point(TOKENS, "response", 15000.0 + 10 * (self.rank % 5), at, step)
        self.point(QUEUE, "rollout_pending", float(step % 7), at, step)
        self.point(POLICY_VERSION, "", float(step), at, step)
        for count in ("micro_batches", "optimizer_steps", "skipped_updates"):
            self.point(COUNT, count, float(count != "skipped_updates" or step % 20 == 0), at)
        self.point(COUNT, "nonfinite_gradients", float(step % 20 == 0), at)
        for name, value in {**self.memory(step), **self.patches()}.items():
            self.point(GAUGE, name, value, at)
        if self.rank == 0:
            for name, value in scalars(step).items():
                self.point(SCALAR, name, value, at, step)

    def memory(self, step: int) -> dict[str, float]:
        allocated = (38 + (self.rank * 7 + step * 3) % 9) * GIB
        reserved = min(76.0, 56 + 0.05 * step + self.rank % 3) * GIB
        fields = {
            "allocated_bytes": allocated, "reserved_bytes": reserved, "limit_bytes": 80 * GIB,
            "num_alloc_retries": float(step // 10), "num_ooms": float(self.rank == 3),
            "stage_peak_bytes/rollout": 49 * GIB, "stage_peak_bytes/backward": 66 * GIB,
            "stage/allocated_bytes/rollout": 30 * GIB,
            "stage/num_alloc_retries/backward": float(step // 10),
            "stage/num_ooms/rollout": float(self.rank == 3),
            "at/end/offload/allocated_bytes/backward": 2 * GIB,
            "at/end/offload/reserved_bytes/backward": 3 * GIB,
        }  # fmt: skip
        return {f"memory/{field}@cuda:0": value for field, value in fields.items()}

    def patches(self) -> dict[str, float]:
        hooks = {f"patch/{hook}": state for hook, state in HOOKS.items()}
        return {**hooks, "guest/overhead_ratio": 0.0003 + 1e-6 * self.rank}


def scalars(step: int) -> dict[str, float]:
    """What verl logs, also with a critic, tools, and a rollout engine that is compared."""
    noise = random.Random(f"scalars:{step}").uniform(-1, 1)
    return {
        "critic/score/mean": 0.4 + 0.02 * noise, "critic/score/max": 1.0, "critic/score/min": 0.0,
        "critic/rewards/mean": 0.4 + 0.02 * noise, "critic/rewards/max": 1.0,
        "critic/rewards/min": 0.0, "critic/advantages/mean": 0.01 * noise, "critic/vf_loss": 0.2,
        "critic/lr": 1e-5, "actor/lr": 1e-6, "actor/entropy": 0.8 + 0.03 * noise,
        "actor/ppo_kl": 0.004 + 0.001 * noise, "actor/kl_loss": 0.05, "actor/pg_loss": 0.01 * noise,
        "actor/pg_clipfrac": 0.02, "actor/grad_norm": 0.7 + 0.1 * noise, "torch/grad_norm": 0.7,
        "rollout_corr/kl": 0.002, "rollout_corr/k3_kl": 0.003, "num_turns/mean": 2.5,
        "response_length/mean": 300 + 20 * noise, "response_length/max": 512.0,
        "response_length/clip_ratio": 0.1, "response/aborted_ratio": 0.01,
        "prompt_length/mean": 120.0, "timing_s/step": 1.0, "timing_s/gen": 0.3,
        "perf/throughput": 2500.0 + 20 * noise, "perf/total_num_tokens": 76000.0,
    }  # fmt: skip


def main() -> None:
    num_ranks = int(sys.argv[1])
    straggler = int(sys.argv[2]) if len(sys.argv) > 2 else None
    step_ns = int(1e9 * (float(sys.argv[3]) if len(sys.argv) > 3 else 1.0))
    folder = default_directory()
    ranks = [
        ScriptedRank(folder, rank, num_ranks, 1.25 if rank == straggler else 1.0, step_ns)
        for rank in range(num_ranks)
    ]
    Path(folder, "1-deadbeef.seg").write_bytes(b"no segment")
    print("ready", flush=True)
    begin = time.monotonic_ns()
    for step in range(1, 10**9):
        work = [rank.work(step, begin) for rank in ranks]
        meet = max(stages[-1][2] for stages in work)
        pairs = zip(ranks, work, strict=True)
        courses = [(begin, rank.rank, rank.course(step, begin, *s, meet)) for rank, *s in pairs]
        play(courses)
        for rank in ranks:
            rank.segment.add_clock_pair()
        begin += step_ns


def play(courses: list[tuple[int, int, Iterator[int]]]) -> None:
    """All ranks of one step, each as time passes; (when, rank, the rest of its step)."""
    heapq.heapify(courses)
    while courses:
        due, rank, course = courses[0]
        time.sleep(max(0, due - time.monotonic_ns()) / 1e9)
        following = next(course, None)
        if following is None:
            heapq.heappop(courses)
        else:
            heapq.heapreplace(courses, (following, rank, course))


if __name__ == "__main__":
    main()

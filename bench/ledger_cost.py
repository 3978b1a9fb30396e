"""What one crossing of the shape ledger costs the training thread.

The batches are those of verl on the host: 128 samples of 1,024 tokens with 9 columns, one too large
to be read in full, and a small one. The baseline counts NaN and Inf in the same float columns the
plain way (``isfinite``), which says nothing about ids, masks, lengths or moved rows.
"""

from __future__ import annotations

import tempfile

import torch

import dfx_agent.shim as dfx
from bench.calls import Case, block_means_ns
from bench.measurement import Result, median_of, of_samples, report

SHAPES = {"16 x 24": (16, 24), "128 x 1,024": (128, 1024), "512 x 8,192": (512, 8192)}
PER_TOKEN = ("old_log_probs", "ref_log_prob", "rollout_log_probs", "advantages", "returns")


def measure(*, quick: bool) -> list[Result]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm") as folder:
        dfx.init(run="bench", directory=folder)
        dfx.set_step(7)
        rows = [
            row
            for shape in list(SHAPES)[: 2 if quick else None]
            for row in _rows(shape, num_blocks=2 if quick else 30)
        ]
        dfx.shutdown()
    return rows


def _rows(shape: str, num_blocks: int) -> list[Result]:
    ledger = Case(f"ledger, {shape}", "ledger('reward', batch)")
    plain = Case(f"isfinite, {shape}", "count_nonfinite(batch)")
    names = {"ledger": dfx.ledger, "count_nonfinite": _count_nonfinite, "batch": _batch(shape)}
    num_calls = 1 if shape.startswith("512") else 10
    means = block_means_ns([ledger, plain], names, num_blocks, num_calls)
    milliseconds = {name: [ns / 1e6 for ns in blocks] for name, blocks in means.items()}
    baseline = median_of("isfinite of the float columns", milliseconds[plain.name])
    note = "one crossing, torch on one thread"
    return [of_samples(ledger.name, milliseconds[ledger.name], "ms", baseline=baseline, note=note)]


def _batch(shape: str) -> dict[str, torch.Tensor | list[str]]:
    num_samples, num_tokens = SHAPES[shape]
    mask = torch.rand(num_samples, num_tokens) < 0.6
    per_token = {name: torch.randn(num_samples, num_tokens) * mask for name in PER_TOKEN}
    return {
        "uid": [f"prompt-{row // 8}" for row in range(num_samples)],
        "sample_id": torch.arange(num_samples),
        "response_mask": mask,
        "rewards": torch.randn(num_samples),
        **per_token,
    }


def _count_nonfinite(batch: dict[str, torch.Tensor]) -> int:
    columns = [batch[name] for name in (*PER_TOKEN, "rewards")]
    return sum(int((~column.isfinite()).sum()) for column in columns)


if __name__ == "__main__":
    report(measure)

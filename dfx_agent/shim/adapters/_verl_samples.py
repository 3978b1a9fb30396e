"""What verl's trainer knows of each sample and logs in sum: lags, and where policies differ.

Source: PyPI verl 0.9.1. ``calculate_debug_metrics`` is called wherever the rollout's own
log-probabilities are there, with tensors on the host. V1 tags each trajectory with the versions of
the weights it was generated with; a version is a step. The names are ours:
``catalogue/native/pipeline.yaml``.
"""

from __future__ import annotations

import sys
from collections import Counter
from types import ModuleType
from typing import Any

from dfx_agent.shim.adapters import _around
from dfx_agent.shim.adapters._around import put
from dfx_agent.shim.patches import PatchSet
from dfx_agent.shim.recorder import Recorder

# of larger batches evenly spaced rows, and the first of the tags
_MAX_TOKENS, _MAX_TAGS = 1 << 18, 1 << 14
_END_TOKENS = 256
_LARGEST_LOG_RATIO = 20.0
_LAGS = ("0", "1", "2", "3", "4-7", "8+")


def patch_debug_metrics(patches: PatchSet, module: ModuleType) -> None:
    put(patches, module, "calculate_debug_metrics", _around.before(_read_mismatch))


def patch_v1(patches: PatchSet, module: ModuleType) -> None:
    put(patches, module, "PPOTrainer._compute_metrics", _around.before(_read_lags))


def _read_mismatch(writer: Recorder, data: Any) -> None:
    """Mismatch KL (k3, nats) over the first tokens of responses, the last, and what is between."""
    torch, columns = sys.modules["torch"], data.batch
    if "response_mask" not in columns:  # verl counts the prompt's tokens too, then
        return
    rollout, trained = columns["rollout_log_probs"], columns["old_log_probs"]
    mask = columns["response_mask"]
    if {rollout.device.type, trained.device.type, mask.device.type} != {"cpu"}:
        return
    every = max(1, -(-rollout.numel() // _MAX_TOKENS))
    with torch.no_grad():
        mask = mask[::every].bool()
        ratio = (trained[::every] - rollout[::every]).float()
        ratio = ratio.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
        k3 = ratio.exp() - ratio - 1.0
        told = {
            f"pipeline/mismatch_kl/position/{name}": k3[tokens].mean().item()
            for name, tokens in _places(torch, mask)
            if tokens.any()
        }
    _around.report(writer, told, writer.step)


def _places(torch: Any, mask: Any) -> tuple[tuple[str, Any], ...]:
    """Which tokens (B, R) of ``mask`` are in which part; a response ends with its last one."""
    column = torch.arange(mask.shape[1])
    ends = (mask * (column + 1)).amax(dim=1, keepdim=True)
    first = mask & (column < _END_TOKENS)
    last = mask & ~first & (column >= ends - _END_TOKENS)
    return ("first", first), ("middle", mask & ~first & ~last), ("last", last)


def _read_lags(
    writer: Recorder,
    _trainer: Any,
    batch: Any,
    metrics: Any,  # noqa: ARG001 (may be given by name)
    timing_raw: Any,  # noqa: ARG001 (may be given by name)
    global_steps: int,
    *_: Any,
    **__: Any,
) -> None:
    """Shares by lag; weights of version ``global_steps`` - 1 are trained in this step."""
    tags = [tag for tag in batch.tags[:_MAX_TAGS] if not tag.get("is_padding", False)]
    for name, key in {"oldest": "min_global_steps", "newest": "max_global_steps"}.items():
        lags = Counter(_bucket(global_steps - 1 - int(tag[key])) for tag in tags)
        if tags:
            shares = {lag: lags[lag] / len(tags) for lag in _LAGS}
            told = {f"pipeline/lag/{name}/share/{lag}": share for lag, share in shares.items()}
            _around.report(writer, told, global_steps)


def _bucket(lag: int) -> str:
    if lag < 4:
        return str(max(0, lag))
    return "4-7" if lag < 8 else "8+"

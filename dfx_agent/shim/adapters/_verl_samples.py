"""verl's per-sample data that verl only logs in sum: policy lags and mismatch KL by position.

Source: PyPI verl 0.9.1. ``calculate_debug_metrics`` is called, with host tensors, whenever the
rollout's own log-probabilities are available. V1 tags each trajectory with the versions of the
weights that generated it; a version is a step. The metric names are dfx-agent's:
``catalogue/native/pipeline.yaml``.
"""

from __future__ import annotations

import sys
from collections import Counter
from types import ModuleType
from typing import Any

from dfx_agent.shim.adapters import _around
from dfx_agent.shim.adapters._around import wrap
from dfx_agent.shim.patches import PatchSet
from dfx_agent.shim.recorder import Recorder

# larger batches are read in evenly spaced rows; of the tags only the first are read
_MAX_TOKENS, _MAX_TAGS = 1 << 18, 1 << 14
_END_TOKENS = 256
_LARGEST_LOG_RATIO = 20.0
_LAGS = ("0", "1", "2", "3", "4-7", "8+")


def patch_debug_metrics(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "calculate_debug_metrics", _around.before(_read_mismatch))


def patch_v1(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "PPOTrainer._compute_metrics", _around.before(_read_lags))


def _read_mismatch(writer: Recorder, data: Any) -> None:
    """Mismatch KL (k3, nats) over the first tokens of responses, the last, and the middle."""
    torch, columns = sys.modules["torch"], data.batch
    if "response_mask" not in columns:  # verl then includes the prompt's tokens
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
        values = {
            f"pipeline/mismatch_kl/position/{name}": k3[tokens].mean().item()
            for name, tokens in _response_parts(torch, mask)
            if tokens.any()
        }
    _around.report(writer, values, writer.step)


def _response_parts(torch: Any, mask: Any) -> tuple[tuple[str, Any], ...]:
    """Masks (B, R) of the first, middle and last tokens of the responses in ``mask`` (B, R)."""
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
    """Report shares by lag; this step trains weights of version ``global_steps`` - 1."""
    tags = [tag for tag in batch.tags[:_MAX_TAGS] if not tag.get("is_padding", False)]
    for name, key in {"oldest": "min_global_steps", "newest": "max_global_steps"}.items():
        lags = Counter(_bucket(global_steps - 1 - int(tag[key])) for tag in tags)
        if tags:
            shares = {lag: lags[lag] / len(tags) for lag in _LAGS}
            values = {f"pipeline/lag/{name}/share/{lag}": share for lag, share in shares.items()}
            _around.report(writer, values, global_steps)


def _bucket(lag: int) -> str:
    if lag < 4:
        return str(max(0, lag))
    return "4-7" if lag < 8 else "8+"

"""Files of a ``wandb/`` folder that look like logs and hold no steps."""

from __future__ import annotations

from pathlib import Path

_SUMMARY = "wandb-summary.json"
_BINARY = ".wandb"


def why_no_steps(path: Path) -> str | None:
    """None for a file that may be a log."""
    if path.name == _SUMMARY:
        return "holds the last values of a W&B run and no steps: export its history as CSV"
    if path.suffix == _BINARY:
        return "is W&B's own binary form, which is not read: export the history as CSV"
    return None

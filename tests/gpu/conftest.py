"""The table at the end of ``make test-gpu``: what held on this device and what was skipped.

``record_property(name, value)`` of a test is a line of it.
"""

from __future__ import annotations

import platform
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
_WORDS = {"passed": "held", "failed": "FAILED", "error": "FAILED", "skipped": "skipped"}


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line for each file, in its own words; below it the figures that its tests recorded."""
    files: dict[str, Counter[str]] = {}
    figures: dict[str, list[str]] = {}
    reasons: dict[str, set[str]] = {}
    for outcome, word in _WORDS.items():
        for report in terminalreporter.stats.get(outcome, []):
            path = str(getattr(report, "fspath", ""))
            if "gpu" not in Path(path).parts:
                continue
            files.setdefault(path, Counter())[word] += 1
            figures.setdefault(path, []).extend(
                f"{name}: {value}" for name, value in getattr(report, "user_properties", ())
            )
            if outcome == "skipped" and isinstance(report.longrepr, tuple):
                reasons.setdefault(path, set()).add(str(report.longrepr[2]))
    if not files:
        return
    terminalreporter.section(f"on {device()}", sep="=")
    for path, counts in sorted(files.items()):
        reported = ", ".join(f"{number} {word}" for word, number in sorted(counts.items()))
        terminalreporter.write_line(f"{reported:<24} {about(path)}")
        for line in (*sorted(reasons.get(path, ())), *figures.get(path, ())):
            terminalreporter.write_line(f"{'':<24}   {line}")


def about(path: str) -> str:
    """First line of the file that says what it is about."""
    text = (HERE.parents[1] / path).read_text(encoding="utf-8")
    return text.split('"""')[1].splitlines()[0].rstrip(".")


def device() -> str:
    """As in "NVIDIA H100, torch 2.13.0 (CUDA 13.0), x86_64, 2026-11-23"."""
    today = time.strftime("%Y-%m-%d")
    try:
        import torch
    except ImportError:
        return f"no torch, {platform.machine()}, {today}"
    has_cuda = torch.cuda.is_available()
    name = torch.cuda.get_device_name(0) if has_cuda else "no CUDA device"
    built_for = torch.version.cuda or torch.version.hip or "CPU"
    return f"{name}, torch {torch.__version__} ({built_for}), {platform.machine()}, {today}"

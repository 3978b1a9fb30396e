"""Which files of a folder are logs. What is passed over is named with its reason."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dfx_agent.node.logs.folders import (
    check_readable,
    describe,
    why_no_file,
    why_no_steps,
    why_unread,
)
from dfx_agent.node.logs.mlflow_folder import is_run_folder
from dfx_agent.node.logs.tensorboard import is_of_folder

# never logs of training, and large: not even opened
_OTHER_ENDINGS = frozenset(
    [
        ".safetensors",
        ".bin",
        ".pt",
        ".pth",
        ".ckpt",
        ".npy",
        ".npz",
        ".pkl",
        ".arrow",
        ".png",
        ".jpg",
        ".jpeg",
        ".gif",
        ".svg",
        ".pdf",
        ".mp4",
        ".py",
        ".pyc",
        ".so",
        ".sh",
        ".yaml",
        ".yml",
        ".toml",
        ".model",
        ".tar",
        ".zip",
        ".whl",
    ]
)
# how the reason ends where a file was not even opened
BY_NAME = "is no log"
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,18})")
_STATE = "trainer_state.json"


@dataclass
class Found:
    """The logs that a backtest reads."""

    logs: list[Path] = field(default_factory=list)
    """All logs to read."""
    named: set[Path] = field(default_factory=set)
    """Files and folders that the user named."""
    passed_over: list[tuple[str, str]] = field(default_factory=list)
    """(path, reason) of files that are not read."""


def find_logs(places: Iterable[str], *, labels: Path | None = None) -> Found:
    """Named files, and files in named folders that may be logs. A TensorBoard folder is one log."""
    found = Found()
    for place in map(Path, places):
        if _holds_logs(place):
            found.logs += _below(place, found, labels)
        else:
            found.named.add(place)
            found.logs.append(place)
    found.logs = list(dict.fromkeys(found.logs))
    return found


def _holds_logs(place: Path) -> bool:
    """False also for a folder that cannot be read: it is named, so its reader says why."""
    try:
        if not place.is_dir():
            return False
        check_readable(place)
        return not is_run_folder(place)
    except OSError:
        return False


def _below(folder: Path, found: Found, labels: Path | None) -> Iterator[Path]:
    states: dict[Path, tuple[int, Path]] = {}
    walked: set[Path] = set()
    for where, folders, files in os.walk(
        folder, followlinks=True, onerror=lambda error: found.passed_over.append(describe(error))
    ):
        folder = Path(where)
        if why := _why_not_entered(folder, walked):
            folders.clear()
            found.passed_over.append((where, why))
            continue
        walked.add(folder.resolve())
        hidden = [name for name in folders if name.startswith(".")]
        found.passed_over += [(str(folder / name), f"hidden {BY_NAME}") for name in hidden]
        folders[:] = sorted(set(folders) - set(hidden))
        if is_run_folder(folder):
            folders.clear()
            yield folder
            continue
        if any(map(is_of_folder, files)):
            yield folder
        for path in (folder / name for name in sorted(files)):
            checkpoint = _CHECKPOINT.fullmatch(folder.name) if path.name == _STATE else None
            if checkpoint:
                _select_latest(states, int(checkpoint[1]), path, found)
            elif path == labels or is_of_folder(path.name):
                continue
            elif why := _why_no_log(path):
                found.passed_over.append((str(path), why))
            else:
                yield path
    yield from (path for _, path in states.values())


def _why_not_entered(folder: Path, walked: set[Path]) -> str | None:
    try:
        check_readable(folder)
    except OSError as error:
        return why_unread(error)
    is_walked = folder.resolve() in walked
    return "this folder is read already, by another name" if is_walked else None


def _why_no_log(path: Path) -> str | None:
    """Why a file is no log, without opening it; None if it may be one."""
    if path.name.startswith("."):
        return f"hidden {BY_NAME}"
    if path.suffix.lower() in _OTHER_ENDINGS:
        return f"{path.suffix} {BY_NAME}"
    return why_no_file(path) or why_no_steps(path)


def _select_latest(
    states: dict[Path, tuple[int, Path]], step: int, path: Path, found: Found
) -> None:
    """Select the latest checkpoint of a run: each contains the history from the beginning."""
    run = path.parent.parent
    other = states.get(run)
    if other is None or other[0] < step:
        states[run] = step, path
    older = path if other and other[0] >= step else other and other[1]
    if older:
        latest = states[run][1]
        found.passed_over.append((str(older), f"its history continues in {latest.parent.name}"))

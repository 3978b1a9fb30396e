"""What another run may have differently: configuration, packages, devices, host.

Read once for each run, from outside the job: command line and environment of its first rank, the
names of its installed packages, drivers and devices of this node. Values that look like secrets
are replaced.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dfx_agent.exporters.history.run_file import Fact
from dfx_agent.snapshot import AgentRow, RankRow, RunRow

_MOST_BYTES = 1 << 20
_MOST_LETTERS = 1000
_SECRET = re.compile(r"token|passw|secret|credential|api_?key|access_?key|auth", re.IGNORECASE)
_NO_SECRET = re.compile(r"token(s|izer)|max_?token|token_?(level|num|count|mean)|pad_token")
_USER_IN_URL = re.compile(r"(?<=://)[^/@\s]+@")
_HIDDEN = "(hidden)"
# variables that change how a job runs
_VARIABLES = re.compile(
    r"(NCCL|TORCH|PYTORCH|CUDA|HIP|ROCR|VLLM|SGLANG|OMP|MKL|XLA|TOKENIZERS|HCCL|ASCEND|RAY|UCX)_.+"
    r"|WORLD_SIZE"
)
# different for each start of the same job
_OF_ONE_START = re.compile(r".*(RUN_ID|RANK|PORT|ADDR|ERROR_FILE|SESSION|JOB_ID|RESTART_COUNT).*")
_SITE = re.compile(r"(/\S+/(?:site|dist)-packages)/")
_PACKAGE = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)\.dist-info")
_DRIVERS = {"nvidia": "/sys/module/nvidia/version", "amdgpu": "/sys/module/amdgpu/version"}
_PYTHON = re.compile(r"/python(\d+\.\d+)/")


def describe(
    run: RunRow, agent: AgentRow, proc: str = "/proc", *, only_node: str | None = None
) -> list[Fact]:
    """Facts that can be read on this node; others are left out.

    ``only_node``: of a hub, whose other nodes have other processes with the same pids.
    """
    if only_node is not None:
        run = replace(run, ranks=tuple(rank for rank in run.ranks if rank.node == only_node))
        if not run.ranks:
            return []
    found = [*_host(agent), *_devices(agent)]
    rank = _first_rank(run.ranks, agent.node)
    if rank is not None:
        folder = f"{proc}/{rank.pid}"
        found += [*_config(folder), *_packages(folder)]
    return found


def _first_rank(ranks: Sequence[RankRow], node: str) -> RankRow | None:
    """A process that lives: its command line is that of the job."""
    living = [rank for rank in ranks if rank.state == "live" and rank.source == "guest"]
    local = [rank for rank in living if rank.node == node] or living
    return min(local, key=lambda rank: (len(rank.rank), rank.rank), default=None)


def _host(agent: AgentRow) -> Iterator[Fact]:
    node, kernel = agent.node, os.uname()
    yield Fact("host", node, "kernel", f"{kernel.sysname} {kernel.release} {kernel.machine}")
    yield Fact("host", node, "num_cpus", str(os.cpu_count()))
    with suppress(OSError, ValueError):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        yield Fact("host", node, "memory_gib", f"{total / 2**30:.0f}")
    yield Fact("package", "", "dfx-agent", agent.version)
    for name, path in _DRIVERS.items():
        if version := _text(path).strip():
            yield Fact("device", node, f"{name}_driver", version)


def _devices(agent: AgentRow) -> Iterator[Fact]:
    models = [row.model for row in agent.devices if row.is_accelerator and row.model]
    for model in dict.fromkeys(models):
        yield Fact("device", agent.node, f"num {model}", str(models.count(model)))


def _config(folder: str) -> Iterator[Fact]:
    """Arguments and environment variables of the process."""
    words = _text(f"{folder}/cmdline").split("\0")
    for key, value in arguments(words):
        yield Fact("config", "", key, _public(key, value))
    for row in _text(f"{folder}/environ").split("\0"):
        key, sign, value = row.partition("=")
        if sign and _VARIABLES.fullmatch(key) and not _OF_ONE_START.fullmatch(key):
            yield Fact("config", "", f"${key}", _public(key, value))


def arguments(words: Sequence[str]) -> list[tuple[str, str]]:
    """(key, value) of a command line: ``--key value``, ``--key=value``, ``key=value``, program.

    >>> arguments(["python", "train.py", "--lr", "0.1", "--fp16", "algo.kl=0.2"])
    [('program', 'train.py'), ('--lr', '0.1'), ('--fp16', 'yes'), ('algo.kl', '0.2')]
    """
    rest = [word for word in words[1:] if word]
    found, programs = [], list[str]()
    while rest:
        word = rest.pop(0)
        key, sign, value = word.partition("=")
        if sign and key:
            found.append((key, value))
        elif word == "-m" or not word.startswith("-"):
            programs += [word] if word != "-m" else []
        elif word.startswith("--") and rest and not _is_key(rest[0]):
            found.append((word, rest.pop(0)))
        elif programs:  # before it are options of the interpreter
            found.append((word, "yes"))
    return [*([("program", " ".join(programs))] if programs else []), *_merged(found)]


def _is_key(word: str) -> bool:
    """A word that begins a new argument; -0.5 is a value."""
    return bool(re.match(r"--?[A-Za-z]", word)) or bool(re.match(r"[\w.+~]+=", word))


def _merged(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Values of a repeated key together, in order."""
    by_key: dict[str, list[str]] = {}
    for key, value in pairs:
        by_key.setdefault(key, []).append(value)
    return [(key, " ".join(values)) for key, values in by_key.items()]


def _public(key: str, value: str) -> str:
    """The value without what looks like a secret."""
    if _SECRET.search(key) and not _NO_SECRET.search(key.lower()):
        return _HIDDEN
    return _USER_IN_URL.sub("", value)[:_MOST_LETTERS]


def _packages(folder: str) -> Iterator[Fact]:
    """Versions of the packages in the folders that the process has loaded libraries from."""
    maps = _text(f"{folder}/maps")
    if python := _PYTHON.search(maps):
        yield Fact("package", "", "python", python[1])
    for site in dict.fromkeys(_SITE.findall(maps)):
        with suppress(OSError):
            for name in sorted(os.listdir(f"{folder}/root{site}")):
                if package := _PACKAGE.fullmatch(name):
                    key = package["name"].lower().replace("_", "-")
                    yield Fact("package", "", key, package["version"])


def _text(path: str) -> str:
    """At most 1 MiB of a file; "" if it cannot be read."""
    with suppress(OSError), Path(path).open("rb") as file:
        return file.read(_MOST_BYTES).decode("utf-8", "replace")
    return ""

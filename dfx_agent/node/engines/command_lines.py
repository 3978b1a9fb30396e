"""Finds out from a command line where its process serves /metrics."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from dfx_agent.base.text import whole_number

_ANY = {"", "0.0.0.0", "::", "localhost", "[::]"}  # noqa: S104 (what others listen on)
_VLLM_PORT, _SGLANG_PORT = 8000, 30000
_VLLM_MODULES = ("vllm.entrypoints.", "vllm/entrypoints/")
_SGLANG_MODULES = ("sglang.launch_server", "sglang/launch_server", "sglang.srt.entrypoints.")
# Ray exports the metrics of its workers through an agent on each node
_RAY_AGENT = "dashboard/agent.py"
# process titles of engine servers and their Ray actors
_TITLES = ("VLLM::APIServer", "ray::vLLM", "ray::SGLang")
# and of their workers, which listen for their peers (gloo, NCCL, ZeroMQ), not for HTTP
_WORKER_TITLES = ("VLLM::", "sglang::")
# servers of examples/async_rl, which inherit their listening socket
_DEMO = "examples.async_rl.server"
# interpreter options that use the next word as their value
_WITH_VALUE = frozenset({"-W", "-X"})


class Served(NamedTuple):
    """Address of a metrics endpoint. ``pd``: "prefill" or "decode" if the two are separate."""

    host: str
    port: int
    pd: str = ""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"


def is_engine(argv: Sequence[str]) -> bool:
    """Whether title or program are those of an engine, wherever it listens."""
    return bool(argv) and (argv[0].startswith(_TITLES) or _program(argv)[0] == _DEMO)


def is_worker(argv: Sequence[str]) -> bool:
    """Whether it computes for an engine's server: unexpected bytes may break its collectives."""
    return bool(argv) and argv[0].startswith(_WORKER_TITLES) and not is_engine(argv)


def served_by(argv: Sequence[str]) -> Served | None:
    """None for a process that is no engine server, or whose port is unknown."""
    default = _default_port(argv)
    if default is None:
        return None
    if default == 0:
        port = _number(_option(argv, "--metrics-export-port"))
        return Served("127.0.0.1", port) if port else None
    port = _number(_option(argv, "--port")) if _option(argv, "--port") else default
    host = _option(argv, "--host")
    mode = _option(argv, "--disaggregation-mode")
    if not port:
        return None
    host = "127.0.0.1" if host in _ANY else host
    return Served(host, port, mode if mode in {"prefill", "decode"} else "")


def _default_port(argv: Sequence[str]) -> int | None:
    """0 if the command line itself must name the port."""
    program, following = _program(argv)
    name = os.path.basename(program)
    if program.endswith(_RAY_AGENT):
        return 0
    if (name == "vllm" and following == "serve") or _is_one_of(program, _VLLM_MODULES):
        return _VLLM_PORT
    if (name == "sglang" and following == "serve") or _is_one_of(program, _SGLANG_MODULES):
        return _SGLANG_PORT
    return None


def _program(argv: Sequence[str]) -> tuple[str, str]:
    """The program, script or module that runs, and the next word."""
    words = [*argv, "", ""]
    i = 0
    if os.path.basename(words[0]).startswith("python"):
        i = 1
        while words[i].startswith("-") and words[i] not in {"-m", "-c"}:
            i += 2 if words[i] in _WITH_VALUE else 1
        if words[i] == "-c":
            return "", ""
        i += words[i] == "-m"
    return words[i], words[i + 1]


def _is_one_of(program: str, modules: tuple[str, ...]) -> bool:
    """Whether the program is a module given to ``-m``, or the path of a script."""
    is_path = program.endswith(".py")
    return any(program.startswith(m) or (is_path and m in program) for m in modules)


def _option(argv: Sequence[str], name: str) -> str:
    """Value of ``--port 80`` or ``--port=80``; the last one counts, "" if there is none."""
    found = ""
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        if word == name:
            found = following
        elif word.startswith(f"{name}="):
            found = word.partition("=")[2]
    return found


def _number(text: str) -> int:
    """0 if the text is no port."""
    return whole_number(text, 65535) or 0

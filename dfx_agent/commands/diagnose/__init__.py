"""Verdicts now, each with its evidence, or "insufficient evidence".

The agent that follows the folder is asked for its diagnosis, with few imports. On a loaded machine
every module that a new process imports takes long: `python -c pass` with its 26 modules takes 13 s
at load 47. The whole package is more than 1,000 modules, what is imported here about 100. A client
of HTTP, TLS and URLs would be 50 more.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import sys
from typing import NamedTuple

from dfx_agent.agent import folder_token
from dfx_agent.commands import add_observing_arguments
from dfx_agent.node.segments import lock
from dfx_agent.wire import default_directory, variables

HELP = "say what is wrong now: hang, crash, straggler, divergence, data, each with its evidence"
EXAMPLE = """dfx-agent diagnose --watch 60
  dfx-agent diagnose --json --run nightly

The worst comes first, on about one screen; --verbose shows all of it.

exit code by the state of the worst run: 0 nothing was found (clear, insufficient evidence, or a
warning), 1 something was found, 2 wrong use, no observed process, nothing has been judged yet, or
the agent is blind: something was not read or judged for three periods. Nothing is clear while an
alert fires or a judge lacks evidence. An agent that follows the folder is asked, since it has seen
more; without an agent the segments are read for 3 s. A hang shows 10 to 15 s after a rank stops
taking part; a straggler takes some steps: --watch looks longer, and ends as soon as something is
found. Divergence needs baselines of 14 steps, which an agent stores; data needs batches that cross
two boundaries of the ledger."""

_WATCH_SECONDS = 3.0
_PLAIN_WIDTH = 100
_TIMEOUT_SECONDS = 5.0
_PATH = "/api/v1/diagnosis"
_MAX_TOKEN_BYTES, _READ_BYTES = 4096, 65536
_RESET = "\x1b[0m"
_OF_STATE = {
    "found": "\x1b[1;31m",
    "warning": "\x1b[33m",
    "noted": "\x1b[36m",
    "clear": "\x1b[32m",
    "insufficient evidence": "\x1b[2m",
}
_BOLD, _DIM = "\x1b[1m", "\x1b[2m"
_KIND = r"(?:hang|straggler|crash|memory|divergence|data)(?: \([^)]*\))?: "
_STATE = re.compile(rf"^(  (?:{_KIND})?)({'|'.join(_OF_STATE)})(?=:)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_observing_arguments(parser)
    parser.add_argument(
        "--watch", type=float, metavar="SECONDS", help="look this long, or until something is found"
    )
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    parser.add_argument(
        "--verbose", action="store_true", help="all evidence, ranks and devices, also healthy ones"
    )


def execute(args: argparse.Namespace) -> int:
    """1 when something was found."""
    answer = diagnosis(args) if args.watch is None else None
    if answer is not None:
        _print(answer.text, args)
        return answer.exit_code
    return _observe(args)


def _observe(args: argparse.Namespace) -> int:
    """The long way: with the whole package, from segments where no agent answers."""
    from dfx_agent.commands.diagnose import diagnosis_text
    from dfx_agent.commands.ps.observed import observe

    seconds = _WATCH_SECONDS if args.watch is None else args.watch
    seen = observe(args, seconds, diagnosis_text.finds_something, asks_again=args.watch is not None)
    if args.json:
        print(diagnosis_text.DOCUMENT.dumped(diagnosis_text.diagnosis(seen, args.run)).decode())
    else:
        text = diagnosis_text.text(seen, args.run, width=_width(), is_verbose=args.verbose)
        _print(text, args)
    return diagnosis_text.exit_code(seen, args.run)


def _print(text: str, args: argparse.Namespace) -> None:
    has_color = sys.stdout.isatty() and not args.json and "NO_COLOR" not in os.environ
    if has_color and os.environ.get("TERM") != "dumb":
        text = colored(text)
    print(text, end="" if text.endswith("\n") else "\n")


def colored(text: str) -> str:
    """The same text with ANSI colours of the terminal's own palette: states, runs, evidence."""
    lines, is_evidence = [], False
    for line in text.split("\n"):
        is_evidence = line.startswith("    - ") or (is_evidence and line.startswith("      "))
        is_dim = is_evidence or line.startswith("  earlier: ")
        lines.append(f"{_DIM}{line}{_RESET}" if is_dim else _colored_line(line))
    return "\n".join(lines)


def _colored_line(line: str) -> str:
    if line.startswith("blind since "):
        return f"{_OF_STATE['found']}{line}{_RESET}"
    if line.startswith("run "):
        return f"{_BOLD}{line}{_RESET}"
    return _STATE.sub(lambda match: f"{match[1]}{_OF_STATE[match[2]]}{match[2]}{_RESET}", line)


def _width() -> int:
    """Of the terminal; 100 columns where stdout is none."""
    return (
        shutil.get_terminal_size((_PLAIN_WIDTH, 0)).columns if sys.stdout.isatty() else _PLAIN_WIDTH
    )


class Answer(NamedTuple):
    """What the agent printed, and its exit code."""

    text: str
    exit_code: int


class _Asked(NamedTuple):
    url: str
    token: str | None
    pids: frozenset[int]


def diagnosis(args: argparse.Namespace) -> Answer | None:
    """The agent's answer; None if it gives none: the caller then reads the segments."""
    asked = _asked(args)
    if asked is None:
        return None
    try:
        accept = "application/json" if args.json else "text/plain"
        return _get(asked, _query(args.run, is_verbose=args.verbose), accept)
    except (OSError, ValueError):
        return None


def _asked(args: argparse.Namespace) -> _Asked | None:
    """The agent of ``--url``, else the one of the folder; https takes the longer way."""
    if os.path.exists("dfx.yaml"):  # it may name another folder or token
        return None
    token = _token(args.token_file or os.environ.get("DFX_TOKEN_FILE"))
    if args.url:
        is_plain = args.url.startswith("http://")
        return _Asked(args.url, _token(args.token_file), frozenset()) if is_plain else None
    directory = args.directory or os.environ.get(variables.DIR.name) or default_directory()
    holder, is_by_us = lock.holder_of(directory)
    if holder is None or not holder.url.startswith("http://"):
        return None
    # a lock that somebody else wrote chose where our token would be shown
    shown = (token or folder_token.read(directory)) if is_by_us else _token(args.token_file)
    return _Asked(holder.url, shown, frozenset({holder.pid}))


def _token(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        with open(file, encoding="utf-8") as opened:
            return opened.read(_MAX_TOKEN_BYTES).strip()
    except (OSError, ValueError):
        return None


def _query(run: str | None, *, is_verbose: bool) -> str:
    name = f"run={_quoted(run)}&" if run else ""
    return f"?{name}width={_width()}{'&verbose=1' if is_verbose else ''}"


def _get(asked: _Asked, query: str, accept: str) -> Answer | None:
    host, port, path = _parts(asked.url)
    lines = [
        f"GET {path}{_PATH}{query} HTTP/1.0",  # the server closes the connection after the answer
        f"Host: {asked.url.removeprefix('http://').partition('/')[0]}",
        f"Accept: {accept}",
        *([f"Authorization: Bearer {asked.token}"] if asked.token else []),
    ]
    with socket.create_connection((host, port), _TIMEOUT_SECONDS) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        received = b"".join(iter(lambda: connection.recv(_READ_BYTES), b""))
    return _answer(received, asked.pids)


def _answer(received: bytes, pids: frozenset[int]) -> Answer | None:
    """None of another agent than that of these ``pids``, and of one that answers otherwise."""
    head, _, body = received.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    code = headers.get("dfx-exit-code")
    seen = {int(pid) for pid in headers.get("dfx-pids", "").split(",") if pid}
    is_whole = len(body) == int(headers.get("content-length", -1))
    if status.split()[1:2] != ["200"] or code is None or not is_whole:
        return None
    if pids and pids.isdisjoint(seen):
        return None
    return Answer(body.decode(), int(code))


def _parts(url: str) -> tuple[str, int, str]:
    """Host, port and path of ``http://HOST[:PORT][/PATH]``; ValueError for another port."""
    place, _, path = url.removeprefix("http://").partition("/")
    if place.endswith("]") or ":" not in place:
        host, port = place, "80"
    else:
        host, _, port = place.rpartition(":")
    return host.strip("[]"), int(port), f"/{path}".rstrip("/")


def _quoted(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())

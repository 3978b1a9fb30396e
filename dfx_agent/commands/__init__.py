"""The command line: each module in this folder is one command.

Each module has ``HELP`` (one line), ``EXAMPLE``, ``add_arguments(parser)`` and
``execute(args) -> int``. Exit codes: 0 ok, 1 failed, 2 wrong use.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import textwrap
from ast import literal_eval
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules

from dfx_agent import __version__
from dfx_agent.base import log
from dfx_agent.base.errors import DfxError
from dfx_agent.wire import SegmentError

_DESCRIPTION = """\
See which stage and which rank of an RL post-training job is slow, and why.
A small guest in each training process writes into shared memory; this agent reads it, shows a
live page and answers Prometheus. The job never waits for it."""

_EPILOG = """\
start here:
  dfx-agent demo                    a real GRPO training, watched live
  dfx-agent run -- torchrun --nproc-per-node 8 train.py

`dfx-agent VERB --help` shows an example for each verb. Settings: dfx.yaml < DFX_* < flags."""


class _Parser(argparse.ArgumentParser):
    """Errors are one line: what happened, what to do."""

    def error(self, message: str) -> None:  # type: ignore[override]
        print(f"dfx-agent: {message} (see `{self.prog} --help`)", file=sys.stderr)
        raise SystemExit(2)


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Folds paragraphs that are wider than the terminal; narrow ones and examples stay as they are.

    argparse does not break a list such as {a,b}: a long one needs a ``metavar``.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(_folded(part, width, indent) for part in text.split("\n\n"))


def _folded(paragraph: str, width: int, indent: str) -> str:
    lines = paragraph.splitlines()
    is_narrow = all(len(indent + line) <= width for line in lines)
    if is_narrow or any(line.startswith(" ") for line in lines):
        return "\n".join(indent + line for line in lines)
    return textwrap.fill(paragraph, width, initial_indent=indent, subsequent_indent=indent)


def build_parser(only: str = "", *, is_overview: bool = False) -> argparse.ArgumentParser:
    """The parser of all commands, or of one command, because imports are most of the start time.

    ``is_overview``: one line per command without its arguments, which needs no import.
    """
    parser = _Parser(
        prog="dfx-agent",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"dfx-agent {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for name in [only] if only else verb_names():
        if is_overview:
            verbs.add_parser(name, help=_help_of(name))
        else:
            _add_verb(verbs, name)
    return parser


def verb_names() -> list[str]:
    return sorted(m.name for m in iter_modules(__path__) if not m.name.startswith("_"))


def _add_verb(verbs: argparse._SubParsersAction[_Parser], name: str) -> None:
    module = import_module(f"{__name__}.{name}")
    verb = verbs.add_parser(
        name,
        help=module.HELP,
        description=module.HELP,
        epilog=f"example:\n  {module.EXAMPLE}",
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    verb.add_argument(
        "--log-level", choices=log.LEVELS, help=f"what is said on stderr (${log.VARIABLE})"
    )
    module.add_arguments(verb)
    verb.set_defaults(execute=module.execute)


def _help_of(name: str) -> str:
    """``HELP`` of a verb, read from its source."""
    spec = find_spec(f"{__name__}.{name}")
    source = Path(spec.origin).read_text() if spec and spec.origin else ""
    found = re.search(r'^HELP = (".*")$', source, re.MULTILINE)
    return str(literal_eval(found[1])) if found else ""


def main(argv: list[str] | None = None) -> int:
    """Run one verb; its exit code."""
    words = sys.argv[1:] if argv is None else argv
    verb = words[0] if words and words[0] in verb_names() else ""
    try:  # around the imports of the verb too, which take most of the start
        args = build_parser(verb, is_overview=not verb).parse_args(words)
        log.configure(args.log_level, os.environ)
        code: int = args.execute(args)
    except DfxError as error:
        print(f"dfx-agent: {error}", file=sys.stderr)
        return error.exit_code
    except SegmentError as error:
        print(f"dfx-agent: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    return code


def add_observing_arguments(parser: argparse.ArgumentParser) -> None:
    """Which run, which folder, which agent."""
    parser.add_argument("--run", metavar="NAME", help="only this run")
    parser.add_argument("--dir", dest="directory", metavar="DIR", help="folder of the segments")
    parser.add_argument(
        "--url",
        metavar="URL",
        help="agent to ask (the one that follows DIR; without one the segments are read)",
    )
    parser.add_argument(
        "--token-file", metavar="FILE", help="token of that agent (of DIR's: as in the settings)"
    )

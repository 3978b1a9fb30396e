"""Flags of verbs that look once and say what they see; imports nothing that takes time."""

from __future__ import annotations

import argparse


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

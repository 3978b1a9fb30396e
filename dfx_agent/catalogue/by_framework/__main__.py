"""Prints docs/reference/metrics-by-framework.md."""

from __future__ import annotations

import sys

from dfx_agent.catalogue.by_framework import render

if __name__ == "__main__":
    sys.stdout.write(render())

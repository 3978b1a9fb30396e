"""Processes and agents as in the integration tests, and what the tests of this folder share."""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "integration")]

"""Unit tests that start the guest in this process leave torch alone; those of hooks say so."""

import os

os.environ.setdefault("DFX_DISABLE_HOOKS", "all")

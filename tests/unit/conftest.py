"""Unit tests that start the guest in this process leave torch alone; those of hooks say so."""

import os

from hypothesis import settings

# a property says nothing about speed: on a loaded machine any example may take a second
settings.register_profile("without_clock", deadline=None)
settings.load_profile("without_clock")

os.environ.setdefault("DFX_DISABLE_HOOKS", "all")

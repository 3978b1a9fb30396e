"""Unit tests that start the guest in this process leave torch alone; those of hooks say so."""

import os

from hypothesis import Phase, settings

# a property says nothing about speed: on a loaded machine any example may take a second
settings.register_profile("without_clock", deadline=None)
# python -m bench.mutants: the same examples each time, and the first that fails is enough
settings.register_profile(
    "mutants",
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "without_clock"))

os.environ.setdefault("DFX_DISABLE_HOOKS", "all")

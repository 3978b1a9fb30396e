"""Lightning, imported as ``pytorch_lightning``."""

from __future__ import annotations

from dfx_agent.shim.adapters import _lightning

KIND = "trainer"
PARTS = _lightning.parts("pytorch_lightning")

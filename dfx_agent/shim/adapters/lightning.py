"""Lightning, imported as ``lightning.pytorch``."""

from __future__ import annotations

from dfx_agent.shim.adapters import _lightning

KIND = "trainer"
PARTS = _lightning.parts("lightning.pytorch")

"""The entry point that runs before the job's first line: ``arm``.

The ``.pth`` file of an installation contains the name of this module, and an old installation may
still load it from a newer checkout. Therefore the module must not be renamed.
"""

from __future__ import annotations

from dfx_agent.shim.lifecycle import guest

arm = guest.arm

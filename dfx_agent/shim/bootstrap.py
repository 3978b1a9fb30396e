"""What code before the job's own first line calls: ``arm``.

The ``.pth`` file of an installation names this module, and no installation is made anew because a
checkout has changed: so it keeps its name.
"""

from __future__ import annotations

from dfx_agent.shim.lifecycle import guest

arm = guest.arm

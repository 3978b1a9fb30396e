"""Arms the guest in every process that imports verl, including Ray workers.

verl 0.9 and newer loads it as an entry point (group ``verl.plugins``), 0.6.1 and newer through
``VERL_USE_EXTERNAL_MODULES=dfx_agent.shim.verl_plugin``. ``DFX_AGENT=0`` disables it. The work is
done on import, because verl loads entry points and does not call them.
"""

from dfx_agent.shim import adapters
from dfx_agent.shim.lifecycle import guest
from dfx_agent.wire import variables

if variables.AGENT.value() != "0" and guest.state in {"off", "gone"}:
    guest.arm()
    # our caller is importing verl right now, so its adapter cannot wait for the end of the import
    adapters.wake("verl")

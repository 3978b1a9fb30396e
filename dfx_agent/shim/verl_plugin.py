"""Loaded by verl in every process that imports it, Ray workers too: arms the guest there.

verl 0.9 and newer finds it by its entry point (group ``verl.plugins``); 0.6.1 and newer by
``VERL_USE_EXTERNAL_MODULES=dfx_agent.shim.verl_plugin``. ``DFX_AGENT=0`` keeps it out. The module
does its work when it is imported, because verl loads entry points and does not call them.
"""

from dfx_agent.shim import adapters
from dfx_agent.shim.lifecycle import guest
from dfx_agent.wire import variables

if variables.AGENT.value() != "0" and guest.state in {"off", "gone"}:
    guest.arm()
    # verl is still being imported, by our caller: its adapter cannot wait until that has ended
    adapters.wake("verl")

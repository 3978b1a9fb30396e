"""An exception that nobody caught, as the guest wrote it down."""

from dfx_agent.wire.failure import Failure

__all__ = ["Failure"]

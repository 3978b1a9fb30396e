"""Texts for NVML numbers: reasons for throttling, meanings of XIDs, remedies for errors."""

from __future__ import annotations

# bits of nvmlDeviceGetCurrentClocksEventReasons that no user has configured
_THROTTLES = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
_GENERAL = "hardware slowdown"  # reported in addition to the specific reason

# docs.nvidia.com/deploy/xid-errors: XIDs that end or stop a job
_XIDS = {
    13: "graphics engine exception",
    31: "memory page fault of a program",
    43: "a program's channel was reset",
    45: "a program was ended while it ran",
    48: "double-bit memory error",
    61: "internal micro-controller halt",
    62: "internal micro-controller halt",
    63: "memory row was remapped",
    64: "memory row could not be remapped",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "many single-bit memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch timed out",
    119: "GSP does not answer",
    120: "GSP error",
    140: "unrecovered memory error",
    145: "NVLink error",
}

NO_PERMISSION, NOT_SUPPORTED, FUNCTION_NOT_FOUND, NOT_FOUND = 4, 3, 13, 6
_NO_SUCH_THING = {NOT_SUPPORTED, FUNCTION_NOT_FOUND, NOT_FOUND}
# 1 not initialised, 15 lost, 16 reset required, 18 versions differ, 999 unknown
_LOST = {
    1: "the driver was unloaded; the agent tries again in a minute",
    15: "the GPU is lost; look for its XID in dmesg, then reset it or drain the node",
    16: "the GPU needs a reset; drain the node and run nvidia-smi --gpu-reset",
    18: "driver and library have different versions; reload the driver or reboot",
    999: "the driver answers with an unknown error; look for an XID in dmesg",
}
_REFUSED = (
    "permission refused; run the agent as root, or load the driver with "
    "NVreg_RestrictProfilingToAdminUsers=0"
)


def throttle_names(bits: int) -> tuple[str, ...]:
    """Why clocks are reduced now; the general reason is left out if there is a specific one."""
    found = [name for bit, name in _THROTTLES.items() if bits & bit]
    return tuple(name for name in found if name != _GENERAL or len(found) == 1)


def xid_meaning(number: int) -> str:
    return _XIDS.get(number, "")


def is_lost(code: int) -> bool:
    """Whether the whole GPU is unavailable."""
    return code in _LOST


def describe_error(code: int, text: str) -> str:
    """What an error means and what to do; "" if the GPU just lacks the feature."""
    if code in _NO_SUCH_THING:
        return ""
    if code == NO_PERMISSION:
        return _REFUSED
    return _LOST.get(code, f"the driver says {text}")

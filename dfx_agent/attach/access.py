"""Explains why the kernel refuses access to another process: the rules of ptrace_may_access.

Sources: kernel/ptrace.c, security/commoncap.c and security/yama/yama_lsm.c of Linux.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from dfx_agent.attach import procfs, refusals
from dfx_agent.attach.procfs import Status
from dfx_agent.base.errors import AttachError

_NAMES = (  # noqa: SIM905 (41 quotes help nobody)
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE "
    "NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO "
    "SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME "
    "SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG "
    "WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE"
).split()
_SYS_PTRACE = 1 << _NAMES.index("SYS_PTRACE")
_WHOLE_NAMESPACE = "4294967295"


class AccessFacts(NamedTuple):
    """What decides whether this process may access another one."""

    target: Status
    own: Status
    yama_scope: int | None
    """kernel.yama.ptrace_scope; None without Yama."""
    is_dumpable: bool | None
    """None if it cannot be seen, because the target's uid is 0."""
    is_in_user_namespace: bool
    """Whether this process is in a user namespace of its own."""


def read_facts(pid: int) -> AccessFacts:
    """Read the facts about a process. Raises OSError if it has exited."""
    target = procfs.status(pid)
    owner = os.stat(f"/proc/{pid}").st_uid
    return AccessFacts(
        target=target,
        own=procfs.status(os.getpid()),
        yama_scope=_yama_scope(),
        is_dumpable=None if target.uids[1] == 0 else owner == target.uids[1],
        is_in_user_namespace=_is_in_user_namespace(),
    )


def refusal(pid: int, facts: AccessFacts) -> AttachError:  # noqa: PLR0911 (one return per rule)
    """The error for a process that the kernel did not let this process open."""
    target, own = facts.target, facts.own
    if own.effective_capabilities & _SYS_PTRACE:
        if facts.yama_scope == 3:
            return refusals.yama(3)
        if facts.is_in_user_namespace:
            return refusals.other_user_namespace(pid)
        return refusals.security_module(pid)
    uid = next((uid for uid in target.uids[:3] if uid != own.uids[3]), None)
    if uid is not None:
        return refusals.other_uid(pid, uid, own.uids[3])
    gid = next((gid for gid in target.gids[:3] if gid != own.gids[3]), None)
    if gid is not None:
        return refusals.other_gid(pid, gid, own.gids[3])
    if missing := target.permitted_capabilities & ~own.effective_capabilities:
        return refusals.lacks_capabilities(pid, capability_names(missing))
    if facts.is_dumpable is not False and facts.yama_scope:
        return refusals.yama(facts.yama_scope)
    return refusals.not_dumpable(pid)


def capability_names(mask: int) -> str:
    """``CAP_IPC_LOCK, CAP_SYS_PTRACE``; an unknown capability is shown by its number."""
    numbers = [number for number in range(mask.bit_length()) if mask >> number & 1]
    return ", ".join(f"CAP_{_NAMES[n] if n < len(_NAMES) else n}" for n in numbers)


def _yama_scope() -> int | None:
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope", encoding="ascii") as scope:
            return int(scope.read())
    except OSError:
        return None


def _is_in_user_namespace() -> bool:
    with open("/proc/self/uid_map", encoding="ascii") as mapped:
        return mapped.read().split() != ["0", "0", _WHOLE_NAMESPACE]

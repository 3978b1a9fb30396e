"""aarch64: registers, the frame of rt_sigreturn, and the stub.

Not run yet on real hardware: only its prototype was, in emulation.

Sources: arch/arm64/include/uapi/asm/{ptrace,sigcontext,ucontext}.h and kernel/signal.c of Linux.
"""

from __future__ import annotations

import struct

from dfx_agent.attach import ptrace, refusals
from dfx_agent.attach.procfs import TargetMemory

name = "aarch64"
address_limit = 0xFFFF_FFFF_F000
idle_syscalls = {
    98: "futex",
    115: "clock_nanosleep",
    101: "nanosleep",
    73: "ppoll",
    72: "pselect6",
    207: "recvfrom",
    212: "recvmsg",
    202: "accept",
    242: "accept4",
    260: "wait4",
    95: "waitid",
    137: "rt_sigtimedwait",
    63: "read",
    22: "epoll_pwait",
}
sigreturn_code = bytes.fromhex("681180d2 010000d4")  # mov x8, 139; svc 0
sigreturn_is_in_vdso = True

# x19 is the table of stub.py, passed in x0. Written through /proc/PID/mem, which flushes the
# instruction cache; process_vm_writev does not.
stub = struct.pack(
    "<36I",
    *(0xA9BE7BFD, 0xA90153F3),  # stp x29, x30, [sp, -32]!; stp x19, x20, [sp, 16]
    0xAA0003F3,  # mov x19, x0
    *(0xF9401668, 0xD63F0100),  # call [x19, 40] (pthread_self)
    *(0xF9401A68, 0xD63F0100),  # call [x19, 48] (pthread_detach)
    *(0xF9401268, 0xD63F0100),  # call [x19, 32] (Py_IsInitialized)
    0x340002A0,  # cbz w0, uninitialised
    *(0xF9400268, 0xD63F0100),  # call [x19] (PyGILState_Ensure)
    0x2A0003F4,  # mov w20, w0
    *(0xD2800028, 0xF9002A68, 0xD5033BBF),  # mov x8, 1; str x8, [x19, 80]; dmb ish: begun
    *(0xF9402E68, 0xB5000088),  # ldr x8, [x19, 88]; cbnz x8, skip: cancelled
    *(0xF9400E60, 0xF9400668, 0xD63F0100),  # ldr x0, [x19, 24]; call [x19, 8] (PyRun_SimpleString)
    *(0x2A1403E0, 0xF9400A68, 0xD63F0100),  # skip: mov w0, w20; call [x19, 16] (PyGILState_Release)
    *(
        0xF9402260,
        0xF9402661,
        0xF9401E68,
    ),  # ldr x0, [x19, 64]; ldr x1, [x19, 72]; ldr x8, [x19, 56]
    *(0xA94153F3, 0xA8C27BFD),  # ldp x19, x20, [sp, 16]; ldp x29, x30, [sp], 32
    0xD61F0100,  # br x8 (munmap, returns to our caller)
    *(0xD2800048, 0xF9002A68, 0xD2800000),  # uninitialised: mov x8, 2; str x8, [x19, 80]; mov x0, 0
    *(0xA94153F3, 0xA8C27BFD, 0xD65F03C0),  # ldp x19, x20, [sp, 16]; ldp x29, x30, [sp], 32; ret
)

_NT_PRSTATUS, _NT_PRFPREG, _NT_ARM_SYSTEM_CALL, _NT_ARM_SVE = 1, 2, 0x404, 0x405
_SVE_FLAGS_AT, _SVE_IN_USE = 12, 1
_X8, _X30, _SP, _PC, _NUM_WORDS = 8, 30, 31, 32, 34
_WORD = 2**64 - 1
_SVC = 0xD4000001
_NO_ALTSTACK_CHANGE = 0x7F  # invalid ss_flags: the kernel leaves the alternate stack as it is
_FPSIMD_MAGIC, _FPSIMD_SIZE = 0x46508001, 528
_SIGINFO_SIZE, _MCONTEXT_RESERVED = 128, 4096
_RED_ZONE = 512


class Aarch64Thread:
    """A stopped thread and its registers."""

    def __init__(self, thread_id: int) -> None:
        raw = ptrace.registers(thread_id, _NT_PRSTATUS)
        self._thread_id = thread_id
        self._words: tuple[int, ...] = struct.unpack(f"<{_NUM_WORDS}Q", raw)

    def syscall(self, memory: TargetMemory) -> tuple[int, int] | None:
        """Number and second argument of the system call it is stopped in; None if in none.

        The kernel has set the program counter back to the ``svc`` if it will repeat the call.
        """
        program_counter = self._words[_PC]
        around = struct.unpack("<2I", memory.read(program_counter - 4, 8))
        return (self._words[_X8], self._words[1]) if _SVC in around else None

    def call(
        self, memory: TargetMemory, function: int, arguments: list[int], sigreturn: int
    ) -> None:
        """Make the resumed thread run ``function(*arguments)`` and then continue where it was.

        Raises AttachError while the thread uses SVE, as the frame does not contain SVE registers.
        """
        if self._uses_sve():
            raise refusals.left_its_call(self._thread_id)
        frame = self._frame(ptrace.signal_mask(self._thread_id))
        stack = (self._words[_SP] - _RED_ZONE - len(frame)) & ~15
        memory.write(stack, frame)
        words = list(self._words)
        words[:6] = [value & _WORD for value in (arguments + [0] * 6)[:6]]
        words[_SP], words[_PC], words[_X30] = stack, function, sigreturn
        ptrace.set_registers(self._thread_id, _NT_PRSTATUS, struct.pack(f"<{_NUM_WORDS}Q", *words))
        ptrace.set_registers(self._thread_id, _NT_ARM_SYSTEM_CALL, struct.pack("<i", -1))

    def _uses_sve(self) -> bool:
        try:
            header = ptrace.registers(self._thread_id, _NT_ARM_SVE)
        except OSError:  # the processor has no SVE
            return False
        return bool(header[_SVE_FLAGS_AT] & _SVE_IN_USE)

    def _frame(self, mask: bytes) -> bytes:
        """An rt_sigframe: siginfo, ucontext, and the FPSIMD registers in its reserved part."""
        floats = ptrace.registers(self._thread_id, _NT_PRFPREG)
        status, control = struct.unpack_from("<II", floats, 512)
        record = struct.pack("<4I", _FPSIMD_MAGIC, _FPSIMD_SIZE, status, control) + floats[:512]
        context = struct.pack("<5Q", 0, 0, 0, _NO_ALTSTACK_CHANGE, 0) + mask
        machine = struct.pack(f"<Q{_NUM_WORDS}Q", 0, *self._words)
        reserved = record.ljust(_MCONTEXT_RESERVED, b"\0")
        return (
            bytes(_SIGINFO_SIZE) + context.ljust(176, b"\0") + machine.ljust(288, b"\0") + reserved
        )


stopped_thread = Aarch64Thread

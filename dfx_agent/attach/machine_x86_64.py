"""x86-64: registers, the frame of rt_sigreturn, and the stub.

Sources: arch/x86/include/asm/user_64.h, .../uapi/asm/sigcontext.h and kernel/fpu/signal.c of Linux.
"""

from __future__ import annotations

import struct

from dfx_agent.attach import ptrace
from dfx_agent.attach.procfs import TargetMemory

name = "x86_64"
address_limit = 0x7FFF_FFFF_F000
idle_syscalls = {
    202: "futex",
    230: "clock_nanosleep",
    35: "nanosleep",
    7: "poll",
    271: "ppoll",
    23: "select",
    270: "pselect6",
    45: "recvfrom",
    47: "recvmsg",
    299: "recvmmsg",
    43: "accept",
    288: "accept4",
    61: "wait4",
    247: "waitid",
    128: "rt_sigtimedwait",
    0: "read",
    232: "epoll_wait",
    281: "epoll_pwait",
}
sigreturn_code = bytes.fromhex("48c7c00f000000 0f05")  # mov rax, 15; syscall
sigreturn_is_in_vdso = False

# rbx is the table of stub.py, passed in rdi.
stub = bytes.fromhex(
    "53 4154 4883ec08 4889fb"  # push rbx; push r12; sub rsp, 8; mov rbx, rdi
    "ff5328 4889c7 ff5330"  # call [rbx+40] (pthread_self); mov rdi, rax; call [rbx+48] (detach)
    "ff5320 85c0 7437"  # call [rbx+32] (Py_IsInitialized); test eax, eax; jz uninitialised
    "ff13 4189c4"  # call [rbx] (PyGILState_Ensure); mov r12d, eax
    "b801000000 48874350"  # mov eax, 1; xchg [rbx+80], rax: begun, and a full barrier
    "48837b5800 7507"  # cmp qword [rbx+88], 0; jne skip: cancelled
    "488b7b18 ff5308"  # mov rdi, [rbx+24]; call [rbx+8] (PyRun_SimpleString)
    "4489e7 ff5310"  # skip: mov edi, r12d; call [rbx+16] (PyGILState_Release)
    "488b7b40 488b7348 488b4338"  # mov rdi, [rbx+64]; mov rsi, [rbx+72]; mov rax, [rbx+56]
    "4883c408 415c 5b ffe0"  # add rsp, 8; pop r12; pop rbx; jmp rax (munmap, returns to our caller)
    "48c7435002000000 31c0"  # uninitialised: mov qword [rbx+80], 2; xor eax, eax
    "4883c408 415c 5b c3"  # add rsp, 8; pop r12; pop rbx; ret
)

_NT_PRSTATUS, _NT_X86_XSTATE = 1, 0x202
# Indices into struct user_regs_struct, 27 words.
_R10, _R9, _R8, _RAX, _RCX, _RDX, _RSI, _RDI = 7, 8, 9, 10, 11, 12, 13, 14
_ORIG_RAX, _RIP, _CS, _EFLAGS, _RSP, _SS = 15, 16, 17, 18, 19, 20
_ARGUMENTS = (_RDI, _RSI, _RDX, _RCX, _R8, _R9)
# struct sigcontext: r8-r15 rdi rsi rbp rbx rdx rax rcx rsp rip eflags.
_SIGCONTEXT = (9, 8, 7, 6, 3, 2, 1, 0, 14, 13, 4, 5, 12, 10, 11, 19, 16, 18)
_WORD = 2**64 - 1
_NO_SYSCALL = _WORD
_ERESTARTS = (512, 513, 514, 516)
_ERESTART_RESTARTBLOCK = 516
_SYSCALL_SIZE = 2
_DIRECTION_FLAG = 0x400
_RED_ZONE = 512  # 128 by the ABI
_UC_FLAGS = 7  # extended state is present; ss is valid and restored strictly
_NO_ALTSTACK_CHANGE = 0x7F  # invalid ss_flags: the kernel leaves the alternate stack as it is
_XSAVE_HEADER, _SW_RESERVED = 512, 464
_MAGIC1, _MAGIC2 = 0x46505853, 0x46505845
_AMX = 1 << 17 | 1 << 18
_END_BEFORE_AMX = 2696


class X86Thread:
    """A stopped thread and its registers."""

    def __init__(self, thread_id: int) -> None:
        raw = ptrace.registers(thread_id, _NT_PRSTATUS)
        self._thread_id = thread_id
        self._words: tuple[int, ...] = struct.unpack(f"<{len(raw) // 8}Q", raw)

    def syscall(self, memory: TargetMemory) -> tuple[int, int] | None:  # noqa: ARG002 (aarch64 needs it)
        """Number and second argument of the system call it is stopped in; None if in none."""
        number = self._words[_ORIG_RAX]
        return None if number > _WORD // 2 else (number, self._words[_RSI])

    def call(
        self, memory: TargetMemory, function: int, arguments: list[int], sigreturn: int
    ) -> None:
        """Make the resumed thread run ``function(*arguments)`` and then continue where it was.

        The frame is written first, the registers afterwards, the signal mask last. If this process
        is killed at any moment, the thread either is unchanged or returns to where it was.
        """
        mask = ptrace.signal_mask(self._thread_id)
        stack = self._write_frame(memory, mask, sigreturn)
        words = list(self._words)
        for register, value in zip(_ARGUMENTS, arguments + [0] * 6, strict=False):
            words[register] = value & _WORD
        words[_RSP], words[_RIP], words[_ORIG_RAX], words[_RAX] = stack, function, _NO_SYSCALL, 0
        words[_EFLAGS] &= ~_DIRECTION_FLAG
        ptrace.set_registers(self._thread_id, _NT_PRSTATUS, struct.pack(f"<{len(words)}Q", *words))

    def _write_frame(self, memory: TargetMemory, mask: bytes, sigreturn: int) -> int:
        """Write what sigreturn restores, with the return address on top; return its address."""
        state = _signal_state(ptrace.registers(self._thread_id, _NT_X86_XSTATE))
        state_at = (self._words[_RSP] - _RED_ZONE - len(state)) & ~63
        words = _resuming(self._words)
        context = struct.pack("<5Q", _UC_FLAGS, 0, 0, _NO_ALTSTACK_CHANGE, 0)
        context += struct.pack("<18Q", *(words[index] for index in _SIGCONTEXT))
        context += struct.pack("<4H4Q", words[_CS], 0, 0, words[_SS], 0, 0, 0, 0)
        context += struct.pack("<Q64x", state_at) + mask
        context_at = (state_at - len(context)) & ~15
        memory.write(state_at, state)
        memory.write(context_at - 8, struct.pack("<Q", sigreturn) + context)
        return context_at - 8


def _resuming(words: tuple[int, ...]) -> list[int]:
    """Registers that repeat an interrupted system call, as the kernel itself would."""
    resumed = list(words)
    error = 2**64 - words[_RAX]
    if words[_ORIG_RAX] > _WORD // 2 or error not in _ERESTARTS:
        return resumed
    resumed[_RAX] = words[_ORIG_RAX]
    resumed[_RIP] = words[_RIP] - _SYSCALL_SIZE
    if error == _ERESTART_RESTARTBLOCK:
        _sleep_only_the_rest(resumed)
    return resumed


def _sleep_only_the_rest(words: list[int]) -> None:
    """Continue a relative sleep with the remaining time, if the caller has asked for that."""
    kind = idle_syscalls.get(words[_ORIG_RAX])
    if kind == "nanosleep" and words[_RSI]:
        words[_RDI] = words[_RSI]
    elif kind == "clock_nanosleep" and words[_R10]:
        words[_RDX] = words[_R10]


def _signal_state(xsave: bytes) -> bytes:
    """The extended state in the format of a signal frame: with size, features and magic 2.

    ptrace always includes space for AMX if the processor has it. For a thread that never requested
    AMX, sigreturn rejects that space and with it all AVX state.
    """
    state = bytearray(xsave)
    (features,) = struct.unpack_from("<Q", state, _SW_RESERVED)
    (used,) = struct.unpack_from("<Q", state, _XSAVE_HEADER)
    if features & _AMX and not used & _AMX:
        features &= ~_AMX
        del state[_END_BEFORE_AMX:]
    size = len(state)
    struct.pack_into("<IIQI28x", state, _SW_RESERVED, _MAGIC1, size + 4, features, size)
    return bytes(state) + struct.pack("<I", _MAGIC2)


stopped_thread = X86Thread

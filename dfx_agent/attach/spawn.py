"""Starts a job with the guest preloaded in it and in every Python child, transparently.

Signals sent to the agent are passed to the job, and the job's exit code becomes the agent's. A
signal from the terminal reaches the complete foreground group by itself and is not sent twice. If
the agent dies, the job continues.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping, Sequence

from dfx_agent.attach.payload import write_preload_folder
from dfx_agent.base.errors import UsageError

_FORWARDED = frozenset(
    {
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
    }
)
_FROM_KERNEL = 0x80  # si_code of a signal that the terminal made
_SIGNALLED = 128


def environment(base: Mapping[str, str], directory: str, run: str) -> dict[str, str]:
    """``base`` plus the variables that arm the guest. Raises OSError if not writable."""
    preload = write_preload_folder(directory)
    inherited = base.get("PYTHONPATH", "").split(os.pathsep)
    others = [p for p in inherited if p and not os.path.basename(p).startswith("preload-")]
    return {
        **base,
        "DFX_AGENT": "1",
        "DFX_DIR": directory,
        "DFX_RUN": run,
        "PYTHONPATH": os.pathsep.join([preload, *others]),
    }


def block_signals() -> set[signal.Signals]:
    """Reserve signals for ``SpawnedJob.wait``, before any thread starts. Returns the old mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED | {signal.SIGCHLD})
    return {signal.Signals(number) for number in before}


class SpawnedJob:
    """A command that runs as a child. Raises UsageError if it cannot be started."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], mask: set[signal.Signals]
    ) -> None:
        self.was_signalled = False
        if shutil.which(command[0], path=env.get("PATH")) is None:
            raise UsageError(f"command not found: {command[0]} (is it on PATH?)")
        try:
            self.pid = os.posix_spawnp(command[0], list(command), env, setsigmask=mask)
        except OSError as error:
            raise UsageError(f"cannot start {command[0]}: {error.strerror}") from None

    def wait(self) -> int:
        """Exit code of the job; 128 + N if signal N killed it. Signals must be blocked.

        The job remains a zombie, so that the agent can read how it ended.
        """
        while True:
            info = signal.sigwaitinfo(_FORWARDED | {signal.SIGCHLD})
            if info.si_signo != signal.SIGCHLD:
                self.was_signalled = True
                if info.si_code != _FROM_KERNEL:
                    os.kill(self.pid, info.si_signo)
                continue
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                was_killed = ended.si_code != os.CLD_EXITED
                return _SIGNALLED + ended.si_status if was_killed else ended.si_status

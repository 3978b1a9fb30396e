"""A rank without torch that starts rollout servers, as a trainer does, and trains beside them.

served_rollouts.py PROGRAM PORT,RUNNING,WAITING...    PROGRAM's command line is an engine's
"""

import subprocess
import sys
import time

import dfx_agent.shim as dfx


def main() -> int:
    program, *engines = sys.argv[1:]
    children = []
    for engine in engines:
        port, _, load = engine.partition(",")
        command = [sys.executable, program, "serve", "a-model", "--port", port]
        command += ["--served-model-name", load]
        children.append(subprocess.Popen(command, stdin=subprocess.PIPE))
    dfx.init(role="trainer", framework="verl", rank=0, world_size=1)
    for step in range(1, 10**9):
        dfx.set_step(step)
        with dfx.stage("rollout"):
            time.sleep(0.2)
    return len(children)


if __name__ == "__main__":
    sys.exit(main())

"""A rank without torch: steps of 0.2 s for ever, or N steps; says "step K" as it begins each.

rank_loop.py [N]        ends in an orderly way after N steps or on SIGTERM
"""

import signal
import sys
import time

import dfx_agent.shim as dfx


def main() -> int:
    num_steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10**9
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    dfx.init(framework="verl")
    for step in range(1, num_steps + 1):
        dfx.set_step(step)
        print("step", step, flush=True)
        with dfx.stage("rollout"):
            time.sleep(0.1)
            dfx.tokens("response", 100)
        with dfx.stage("actor_update"):
            time.sleep(0.05)
            with dfx.wait("barrier"):
                time.sleep(0.05)
        dfx.scalars({"critic/rewards/mean": step / 10, "actor/entropy": 2.0}, step=step)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A job without torch that reports what verl would; at step 60 reward and length fall for good.

``collapsing_job.py [SECONDS]``: how long each step takes from then on.
"""

import random
import sys
import time
from contextlib import suppress

import dfx_agent.shim as dfx

COLLAPSE_STEP = 60
STEP_SECONDS = 0.03


def main() -> None:
    rng = random.Random(5)
    bad_seconds = float(sys.argv[1]) if len(sys.argv) > 1 else STEP_SECONDS
    dfx.init(framework="verl")
    for step in range(1, 100_000):
        is_bad = step >= COLLAPSE_STEP
        dfx.set_step(step)
        with dfx.stage("actor_update"):
            time.sleep(bad_seconds if is_bad else STEP_SECONDS)
        with suppress(ValueError), dfx.stage("reward"):
            raise ValueError("a reward function that fails")
        values = {
            "actor/grad_norm": 0.4 * rng.lognormvariate(0, 0.15),
            "actor/entropy": 0.3 * rng.lognormvariate(0, 0.08),
            "critic/score/mean": rng.gauss(0.1 if is_bad else 0.6, 0.03),
            "response_length/mean": (15 if is_bad else 800) * rng.lognormvariate(0, 0.06),
            "pipeline/reward_seconds/math/p50": 0.2,
            "pipeline/errors/timeout": 1.0,
            "fully_async/rollouter/step_generated_samples": 63.0,
        }
        dfx.scalars(values, step=step)


if __name__ == "__main__":
    main()

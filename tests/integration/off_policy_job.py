"""A rank without torch that marks what UniLab's do: ``off_policy_job.py learner|collector``."""

import sys
import time

import dfx_agent.shim as dfx

PART_SECONDS = 0.05


def spend() -> None:
    time.sleep(PART_SECONDS)


def learn() -> None:
    with dfx.wait("collector"):
        spend()
    with dfx.wait("replay_batch"):
        spend()
    for stage in ("h2d", "critic_update", "actor_update", "weight_sync"):
        with dfx.stage(stage):
            spend()


def collect() -> None:
    with dfx.stage("weight_sync"):
        spend()
    with dfx.wait("policy"):
        spend()
    for stage in ("env_step", "replay"):
        with dfx.stage(stage):
            spend()


def main() -> None:
    role = sys.argv[1]
    iterate = {"learner": learn, "collector": collect}[role]
    dfx.init(framework="unilab", role=role)
    for step in range(1, 100_000):
        dfx.set_step(step)
        iterate()


if __name__ == "__main__":
    main()

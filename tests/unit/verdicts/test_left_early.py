"""Who ended in order while the others went on is to blame when they fail for want of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hang_scene import WORLD_SIZE, Scene, ending, staged

from dfx_agent.snapshot import Verdict

SUCCESS, ERROR = "os._exit(0)", "os._exit(1)"


@pytest.fixture
def scene(dfx_dir) -> Iterator[Scene]:
    with staged(dfx_dir) as scene:
        yield scene


def judged(scene: Scene, how: str, others: str, *, went_on: bool = True) -> Verdict:
    """Rank 1 ends so; then the others, which took part in one more collective or did not."""
    commands = {rank: ending(how if rank == 1 else others) for rank in range(WORLD_SIZE)}
    ranks = scene.warm_up(runs=commands)
    ranks[1].segment.finish()
    ranks[1].ends(is_reaped=False)
    scene.look()
    for rank in (ranks[0], *ranks[2:]):
        if went_on:
            rank.took_part("all_reduce@0", 5)
        rank.segment.finish()
    for rank in (ranks[0], *ranks[2:]):
        rank.ends(is_reaped=False)
    return scene.look(1, "crash")


def test_who_left_early_is_to_blame_and_not_who_died_of_it(scene):
    verdict = judged(scene, SUCCESS, ERROR)
    assert (verdict.state, verdict.ranks, verdict.cause) == ("found", ("1",), "left early")
    assert verdict.summary == (
        "Rank 1 ended without an error in step 4 while other ranks continued. "
        "Ranks 0, 2, 3 failed with exit code 1 afterwards."
    )
    assert verdict.step == 4
    assert verdict.evidence == (
        "rank 1: last collective of group 0 is #4, rank 0 reached #5",
    )  # fmt: skip


def test_torchs_watchdog_aborts_who_waits_for_it(scene):
    verdict = judged(scene, SUCCESS, "os.abort()")
    assert (verdict.ranks, verdict.cause) == (("1",), "left early")


@pytest.mark.parametrize(
    ("how", "others", "went_on"),
    [
        (SUCCESS, ERROR, False),  # all had done the same: the others fail by themselves
        (SUCCESS, "os.kill(os.getpid(), 9)", True),  # somebody killed them
        (SUCCESS, "os.kill(os.getpid(), 11)", True),
        (ERROR, ERROR, True),
        (SUCCESS, SUCCESS, True),
    ],
)
def test_otherwise_nobody_left_early(scene, how, others, went_on):
    verdict = judged(scene, how, others, went_on=went_on)
    assert verdict.cause != "left early"
    assert (verdict.state == "clear") == (others == SUCCESS)

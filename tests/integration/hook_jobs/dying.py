"""Rank 1 dies inside a collective of rank 0."""

from __future__ import annotations

import contextlib
import os

import torch
import torch.distributed as dist
from seen import RANK, checks_of, collectives, join, num_guest_errors, open_now, report


def check_a_rank_that_dies_inside_a_collective():
    dist.all_reduce(torch.ones(1))
    collectives()
    if RANK == 1:
        os._exit(9)
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        first = error.__traceback__
        assert first.tb_frame.f_code is check_a_rank_that_dies_inside_a_collective.__code__
        assert "dfx" not in str(error)  # noqa: PT017
    else:
        raise AssertionError("nothing was raised")
    (row,) = collectives()
    assert (row.name, row.number, row.has_failed) == ("all_reduce@0", 2, True)


def check_the_next_one_fails_too_and_is_recorded():
    with contextlib.suppress(RuntimeError):
        dist.all_reduce(torch.ones(1))
    (row,) = collectives()
    assert row.has_failed
    assert num_guest_errors() == 0
    assert not open_now()


if __name__ == "__main__":
    join()
    report(checks_of("__main__"))

"""What a page is told of a snapshot."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest
from scripted_source import ScriptedSource

from dfx_agent.snapshot import GroupRow, HostMemory, Incident, LedgerState, TimeSplit
from dfx_agent.snapshot.document import Document
from dfx_agent.web.view import Look, PageView, Viewer, chosen_run, mean_split
from dfx_agent.web.visible_ranks import NUM_OF_LARGE_JOB, peers, shown_ranks
from dfx_agent.web.wall import Wall, wall_of

SECONDS = 1_800_000_000.0
MANY = 1024


def snapshot_of(num_ranks: int, **changes):
    source = ScriptedSource(num_ranks, clock=lambda: SECONDS, num_past_steps=2)
    snapshot = source.snapshot()
    runs = tuple(replace(run, **changes) for run in snapshot.runs)
    return replace(snapshot, runs=runs)


def incident(*ranks: str, severity: str = "critical") -> Incident:
    return Incident(
        "i", "straggler", "found", severity, "actor", ranks, "", "", SECONDS, 1, None, "", "", "",
        "", (), (),
    )  # fmt: skip


def test_a_small_job_is_shown_whole():
    (run,) = Viewer(Look()).view(snapshot_of(16)).runs
    assert len(run.places) == len(run.ranks) == run.num_living == 16
    assert run.places[3].now == run.ranks[3].inflight[-1].name


def test_a_run_has_its_samples_per_second():
    ledger = LedgerState(1, 0, 0, (), None, None)
    (run,) = Viewer(Look()).view(snapshot_of(4, ledger=ledger)).runs
    assert run.samples_per_second is None
    snapshot = snapshot_of(4)
    row = snapshot.runs[0].steps[-1]
    ledger = LedgerState(1, 0, 0, (), row.step, 64)
    (run,) = Viewer(Look()).view(snapshot_of(4, ledger=ledger)).runs
    assert run.samples_per_second == pytest.approx(64 / (row.end_seconds - row.begin_seconds))


def test_the_culprits_of_a_large_job_come_first_with_their_peers():
    snapshot = snapshot_of(MANY, incidents=(incident("9", severity="warning"), incident("700")))
    (run,) = Viewer(Look("", (("actor", "3"),))).view(snapshot).runs
    shown = [rank.rank for rank in run.ranks]
    assert shown[:3] == ["700", "9", "3"]
    assert len(shown) == NUM_OF_LARGE_JOB + 1
    assert {
        place.rank: place.blame for place in run.places if place.blame in ("critical", "warning")
    } == {
        "700": "critical",
        "9": "warning",
    }


def test_peers_are_the_smallest_group_below_the_world():
    (run,) = snapshot_of(128).runs
    rows = tuple(
        replace(
            row,
            groups=tuple(
                GroupRow(group, 1, 1, None)
                for group in ("world", f"tensor{int(row.rank) // 4}", f"data{int(row.rank) % 4}")
            ),
        )
        for row in run.ranks
    )
    run = replace(run, ranks=rows)
    assert [row.rank for row in peers(run, rows[42])] == ["40", "41", "42", "43"]
    plain = replace(run, ranks=tuple(replace(r, groups=r.groups[:1]) for r in rows))
    assert [row.rank for row in peers(plain, plain.ranks[2])] == list("01234567")


def test_peers_are_those_with_the_same_part_of_the_model():
    """Of 32 pipelines of 4 stages, each over 2 tensor places."""
    (run,) = snapshot_of(128).runs
    rows = tuple(
        replace(row, place={"pipeline": n // 32, "tensor": n % 2, "data": n % 32 // 2})
        for n, row in enumerate(run.ranks)
    )
    run = replace(run, ranks=rows)
    assert [row.rank for row in peers(run, rows[33])] == [str(n) for n in range(33, 64, 2)]
    shown = shown_ranks(replace(run, incidents=(incident("33"),)))
    assert [row.rank for row in shown[:3]] == ["33", "35", "37"]
    (viewed,) = Viewer(Look()).view(replace(snapshot_of(128), runs=(run,))).runs
    assert viewed.places[33].place == {"pipeline": 1, "tensor": 1, "data": 0}


def test_every_role_of_a_large_job_is_seen():
    (run,) = snapshot_of(128).runs
    rows = tuple(replace(r, role="actor" if int(r.rank) < 120 else "critic") for r in run.ranks)
    shown = shown_ranks(replace(run, ranks=rows))
    assert [(row.role, row.rank) for row in shown[:4]] == [
        ("actor", "0"), ("critic", "120"), ("actor", "1"), ("critic", "121"),
    ]  # fmt: skip


def test_a_view_of_a_large_job_is_small():
    encoded = Document[PageView](PageView).dumped(Viewer(Look()).view(snapshot_of(MANY)))
    assert len(encoded) < 400_000


def test_other_runs_are_names():
    source = ScriptedSource(4, clock=lambda: SECONDS, num_past_steps=2)
    source.run_names = ("a", "b")
    view = Viewer(Look("b")).view(source.snapshot())
    assert view.in_view == "b"
    assert [(run.run, len(run.places), run.num_living) for run in view.runs] == [
        ("a", 0, 4), ("b", 4, 4),
    ]  # fmt: skip


def test_the_last_live_run_is_in_view():
    (run,) = snapshot_of(2).runs
    dead = tuple(replace(rank, state="died") for rank in run.ranks)
    old = replace(run, run="old", begin_seconds=1.0)
    ended = replace(run, run="ended", begin_seconds=2.0, ranks=dead)
    assert chosen_run((old, ended), "").run == "old"
    assert chosen_run((old, ended), "ended").run == "ended"
    assert chosen_run((replace(old, ranks=dead), ended), "gone").run == "ended"
    assert chosen_run((), "") is None


def test_queues_add_up_and_an_empty_one_stays():
    snapshot = snapshot_of(2)
    (run,) = snapshot.runs
    ranks = tuple(replace(rank, queue_depth={"full": 2.0, "empty": 0.0}) for rank in run.ranks)
    snapshot = replace(snapshot, runs=(replace(run, ranks=ranks),))
    assert Viewer(Look()).view(snapshot).runs[0].queue_depth == {"full": 4.0, "empty": 0.0}


def test_a_rank_without_a_part_counts_as_none_of_it():
    one = TimeSplit(2.0, 2.0, 0.0, {"rollout": 2.0}, {})
    other = TimeSplit(4.0, 3.0, 0.0, {"reward": 3.0}, {"barrier": {"": 1.0}})
    mean = mean_split([one, other])
    assert mean.stage_seconds == {"rollout": 1.0, "reward": 1.5}
    assert (mean.wall_seconds, mean.wait_seconds["barrier"][""]) == (3.0, 0.5)
    assert mean_split([]) == TimeSplit()


def test_reports_of_hooks_are_merged_for_similar_ranks():
    snapshot = snapshot_of(4)
    (run,) = snapshot.runs
    ranks = tuple(
        replace(rank, gauges={"patch/ddp": -1.0 if rank.rank == "2" else 1.0,
                              "guest/overhead_ratio": float("nan") if rank.rank == "0" else 0.01})
        for rank in run.ranks
    )  # fmt: skip
    (viewed,) = Viewer(Look()).view(replace(snapshot, runs=(replace(run, ranks=ranks),))).runs
    assert [(group.gauges, group.ranks) for group in viewed.hooks] == [
        ({"patch/ddp": 1.0}, ("0", "1", "3")), ({"patch/ddp": -1.0}, ("2",)),
    ]  # fmt: skip
    assert (viewed.overhead_ratio, viewed.num_overheads) == (pytest.approx(0.01), 3)


def test_the_wall_has_a_ratio_of_each_rank_and_none_where_nothing_is_known():
    (run,) = Viewer(Look()).view(snapshot_of(20)).runs
    assert len(run.wall.work) == len(run.wall.wait) == len(run.wall.memory) == len(run.places)
    assert max(run.wall.work) == run.wall.work[2] > 1.05, "rank 2 samples more slowly"
    assert min(run.wall.wait) == run.wall.wait[2]
    assert median(run.wall.tokens) == pytest.approx(1, abs=0.01)
    (early,) = Viewer(Look()).view(snapshot_of(4, steps=())).runs
    assert early.wall.tokens == ()
    (known,) = snapshot_of(4).runs
    bare = tuple(replace(row, last=None, devices=(), host_memory=None) for row in known.ranks)
    assert wall_of(replace(known, ranks=bare), {}) == Wall()


def test_a_full_device_is_what_counts_of_memory_and_the_host_where_there_is_none():
    (run,) = snapshot_of(2).runs
    first, second = run.ranks
    assert first.devices[0].limit_bytes
    full = replace(first.devices[0], allocated_bytes=first.devices[0].limit_bytes)
    of_devices = replace(run, ranks=(replace(first, devices=(*first.devices, full)), second))
    assert wall_of(of_devices, {}).memory[0] == 1
    hosts = [
        replace(row, devices=(), host_memory=HostMemory(known, None))
        for row, known in zip(run.ranks, (3e9, 6e9), strict=True)
    ]
    assert wall_of(replace(run, ranks=tuple(hosts)), {}).memory == (0.5, 1)


def test_a_plain_key_is_shown_with_its_signal():
    (run,) = snapshot_of(1).runs
    named = replace(run.scalars[0], key="actor/entropy", metric="dfx_actor_entropy_nats")
    plain = tuple(replace(named, key=key, metric=None) for key in ("entropy", "mean_reward", "x"))
    snapshot = snapshot_of(1, scalars=(named, *plain))
    (seen,) = Viewer(Look()).view(snapshot).runs
    assert seen.meant_keys == {"entropy": "entropy", "reward": "mean_reward"}


def test_scores_are_counted_by_data_source():
    snapshot = snapshot_of(2)
    (row,) = snapshot.runs
    counted = {"scores/reward/0.5/math": 3.0, "scores/reward/+Inf/math": 1.0,
               "scores/reward/sum/math": 4.0, "scores/reward/negative_sum/math": 0.0}  # fmt: skip
    ranks = (replace(row.ranks[0], counters_total=counted), *row.ranks[1:])
    (run,) = Viewer(Look()).view(replace(snapshot, runs=(replace(row, ranks=ranks),))).runs
    (math,) = run.scores
    assert (math.source, sum(math.counts), math.counts[-1]) == ("math", 4.0, 1.0)
    assert math.counts[math.edges.index(0.5)] == 3.0

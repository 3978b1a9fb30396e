"""Layouts as texts in the name table, and back, from whoever wrote them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.node.segments.reported_layout import ReportedLayout
from dfx_agent.wire import Identity, SegmentReader, SegmentWriter, job_description
from dfx_agent.wire.layout import MAX_NAME_BYTES

KINDS = (
    job_description.GROUP,
    job_description.POSITION,
    job_description.PEERS,
    job_description.MISSING_GROUPS,
)
RANKS = st.sets(st.integers(0, 20_000), min_size=1, max_size=64)


def taken(*texts):
    layout = ReportedLayout()
    layout.read(texts)
    return layout


@given(RANKS)
def test_strides_hold_the_same_ranks(ranks):
    rows = job_description.rank_ranges(ranks)
    assert sorted(r for row in rows for r in range(row.first, row.last + 1, row.step)) == sorted(
        ranks
    )
    assert list(job_description.parse_ranges(",".join(map(str, rows)))) == rows


@given(st.text(max_size=300), st.text(max_size=300), RANKS)
def test_a_group_is_read_as_it_was_written(name, description, ranks):
    texts = job_description.format_group(name, description, ranks)
    assert len(texts) <= job_description.MAX_PARTS
    assert all(len(text.encode()) <= MAX_NAME_BYTES for text in texts)
    (group,) = taken(*texts).groups.values()
    assert group.num_ranks == len(ranks)
    assert all(rank in ranks for rank in range(20_001) if group.has(rank))
    if group.is_whole:
        assert all(map(group.has, ranks))


@given(
    st.sampled_from(job_description.HIDING_VARIABLES),
    st.none() | st.sampled_from(["", "3", "0,1,2,3", "GPU-5a"]),
)
def test_variables_that_hide_devices_come_back_as_they_are(name, value):
    assert taken(job_description.format_visible(name, value)).visible == {name: value}


def test_a_long_list_of_devices_ends_with_a_whole_one():
    uuids = [f"GPU-{n}0d5f6a4-2a9f-11ee-be56-0242ac120002" for n in range(8)]
    text = job_description.format_visible("ASCEND_RT_VISIBLE_DEVICES", ",".join(uuids))
    assert len(text.encode()) <= MAX_NAME_BYTES
    (value,) = taken(text).visible.values()
    assert value.split(",") == uuids[:3]
    assert taken("dfx:visible|HOME|=/root", "dfx:visible", "dfx:visible|a|b|c").visible == {}


def test_groups_of_large_jobs_are_short():
    every = [
        job_description.format_group("11", "TENSOR_MODEL_PARALLEL_GROUP", range(8, 16)),
        job_description.format_group("300", "DATA_PARALLEL_GROUP", range(3, 10_240, 64)),
    ]
    assert [len(texts) for texts in every] == [1, 1]
    assert all(taken(*texts).groups.popitem()[1].is_whole for texts in every)


def test_a_group_that_does_not_fit_says_how_many_are_in_it():
    odd = [n * n for n in range(3000)]
    (group,) = taken(*job_description.format_group("g", "", odd)).groups.values()
    assert group.num_ranks == 3000
    assert not group.is_whole


def test_a_group_written_again_replaces_the_old_one():
    layout = taken(*job_description.format_group("g", "", [n * n for n in range(90)]))
    version = layout.version
    layout.read(job_description.format_group("g", "dp", range(4)))
    assert layout.version > version
    assert layout.groups["g"].is_whole
    assert layout.groups["g"].description == "dp"


def test_places_and_peers_come_back():
    layout = taken(
        job_description.format_position({"pipeline": (1, 4), "tensor": (0, 2)}),
        job_description.format_peers([3, 9]),
    )
    assert layout.places == {"pipeline": (1, 4), "tensor": (0, 2)}
    assert layout.peers == (3, 9)
    layout.read([job_description.format_missing_groups(7)])
    assert layout.num_untold == 7


@given(st.lists(st.text(alphabet=st.sampled_from("|groupeaslcnt0123456789-/,=x"))))
def test_strange_texts_are_passed_over(texts):
    layout = ReportedLayout()
    layout.read([job_description.MARK + text for text in texts])
    layout.read(
        [
            job_description.SEPARATOR.join(["\x02peers", *texts]),
            job_description.SEPARATOR.join(["\x02group", *texts]),
        ]
    )
    assert len(layout.peers) <= 64


def test_texts_survive_a_ring_that_went_round_and_take_no_place_of_names(tmp_path):
    writer = SegmentWriter(str(tmp_path), Identity(), num_records=64)
    first = writer.add_name("rollout")
    for text in job_description.format_group("0", "default_pg", range(4)):
        writer.add_name(text)
    second = writer.add_name("update")
    for _ in range(200):
        writer.emit(1, 2, 0.0, 0, 0, 0, 0, 1, second)
    reader = SegmentReader(writer.path)
    assert [reader.name(first), reader.name(second)] == ["rollout", "update"]
    layout = taken(*reader.texts(0))
    assert layout.groups["0"].is_whole
    assert not reader.texts(layout.num_texts)
    reader.close()
    writer.close()

"""What is read of a flight recorder, and what is concluded from those of several ranks."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.base.text import age_text
from dfx_agent.facts.flight import FlightRecord
from dfx_agent.judge.unfinished import first_unfinished, unfinished_lines
from dfx_agent.judge.words import labels_text
from dfx_agent.node.segments.flight import parse, read_flight

NOW_NS = time.time_ns()


def row(sequence: int, operation: str, size: int = 8, *, done: bool = True, **changes: Any) -> list:
    known = {"dtypes": ["Float"], "state": "scheduled", "p2p": False, **changes}
    when = NOW_NS - (100 - sequence) * 10**9
    state = known["state"], done, known["p2p"]
    return [sequence, operation, [[size]], 1, size, known["dtypes"], when, *state]


def group(*rows: list, **changes: Any) -> dict:
    known = {"backend": "gloo", "name": "0", "description": "default_pg", "members_crc": 7}
    return {**known, "members": [0, 1], "entries": list(rows), **changes}


def text(rank: int, *groups: dict) -> str:
    return json.dumps({"format": 1, "time_ns": 7000, "rank": rank, "groups": list(groups)})


def records(*of_ranks: list[dict]) -> dict[str, FlightRecord]:
    parsed = {str(rank): parse(text(rank, *groups)) for rank, groups in enumerate(of_ranks)}
    assert None not in parsed.values()
    return parsed


# one file


def test_entries_have_the_names_that_people_use():
    many = [3, "allreduce_coalesced", [[2, 4], [8]], 30, 900, ["BFloat16", "BFloat16"], 5]
    record = parse(text(1, group([*many, "completed", False, False], row(2, "barrier"))))
    (held,) = record.groups.values()
    last, barrier = held.entries
    assert (record.time_ns, record.rank, held.members) == (7000, 1, (0, 1))
    assert (last.operation, last.is_finished) == ("all_reduce", True)
    assert last.tensors == " [2, 4] [8] and 28 more bfloat16"
    assert barrier.operation == "barrier"
    assert age_text(3) == "3 s"
    assert age_text(840) == "14 min"


def test_a_file_of_before_or_none_at_all_says_nothing(tmp_path):
    segment = tmp_path / "1-a.seg"
    assert read_flight(str(segment), 0) is None
    segment.with_suffix(".flight").write_text(text(0, group()))
    assert read_flight(str(segment), 7000) is not None
    assert read_flight(str(segment), 7001) is None


@pytest.mark.parametrize(
    "damage",
    [
        "", "[]", "{}", "1", "null", "NaN", "[" * 10**5, '{"format": 2}', text(0, group())[:-3],
        text(-1), text(2**70), text(0, group(row(-1, "x"))), text(0, group([1])),
        text(0, group(members="ab")), text(0, group(name=3)), text(0, group(row(1.5, "x"))),
        text(0, group(row(1, "x", 10**30))), text(0, group(row(1, "x", dtypes=[3]))),
    ],
)  # fmt: skip
def test_what_is_no_record_is_left_out(damage):
    assert parse(damage) is None


def test_it_is_bounded_and_has_no_control_characters():
    wide = [1, "x\n\x1b" * 999, [[1] * 20] * 20, 20, 9, ["a"] * 20, 1, "s", False, False]
    record = parse(text(0, *[group(*[wide] * 70, members_crc=i) for i in range(70)]))
    assert len(record.groups) == 64
    held = next(iter(record.groups.values()))
    assert len(held.entries) == 64
    assert held.entries[0].operation.isprintable()
    assert len(held.entries[0].tensors) < 2000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=10) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=30,
)


@given(
    JSON, st.sampled_from(["groups", "members", "entries", "row", "field", "time_ns"]), st.data()
)
def test_any_value_anywhere_reads_or_does_not(value, where, data):
    field = data.draw(st.integers(0, 9))
    whole = row(1, "all_reduce")
    whole[field] = value if where == "field" else whole[field]
    rows = value if where == "entries" else [value if where == "row" else whole]
    held = group(members=value if where == "members" else [0])
    document = json.loads(text(0, {**held, "entries": rows}))
    if where in document:
        document[where] = value
    record = parse(json.dumps(document))
    if record is not None:
        unfinished_lines({"0": record}, labels_text, time.time())


# several ranks


def test_the_missing_collective_is_named_with_what_the_others_did_last():
    known = records(
        [group(row(42, "all_reduce", done=False), row(41, "broadcast"))],
        [group(row(41, "broadcast"))],
    )
    (unfinished,) = first_unfinished(known)
    assert (unfinished.group, unfinished.sequence, list(unfinished.missing)) == ("0", 42, ["1"])
    (line,) = unfinished_lines(known, labels_text, time.time())
    assert line.startswith("flight recorder: all_reduce@0 #42 [8] float32 issued by rank 0, first ")
    assert "; not by rank 1, last call broadcast@0 #41 [8] float32, issued " in line


def test_it_is_said_how_long_ago_it_was_issued(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: NOW_NS / 1e9)
    known = records(
        [group(row(42, "all_reduce", done=False), row(41, "broadcast"))],
        [group(row(41, "broadcast"))],
    )
    (line,) = unfinished_lines(known, labels_text, time.time())
    assert "issued by rank 0, first 58 s ago" in line
    assert line.endswith("broadcast@0 #41 [8] float32, issued 59 s ago")


def test_a_member_that_never_used_the_group_is_missing():
    known = records([group(row(1, "barrier", done=False))], [group(row(3, "barrier"), name="1")])
    (unfinished,) = first_unfinished(known)
    assert dict(unfinished.missing) == {"1": None}
    assert (
        "rank 1, last call nothing on record"
        in unfinished_lines(known, labels_text, time.time())[0]
    )


@pytest.mark.parametrize(
    ("mine", "other", "num_kinds"),
    [
        (row(1, "all_reduce", done=False), row(1, "broadcast", done=False), 2),
        (row(1, "all_reduce", done=False), row(1, "broadcast"), 2),
        (row(1, "all_reduce", done=False), row(1, "all_reduce", 9, done=False), 2),
        (row(1, "all_reduce", done=False), row(1, "all_reduce", dtypes=["Half"], done=False), 2),
        (row(1, "broadcast", done=False), row(1, "_broadcast_oop", 9, done=False), 2),
        (row(1, "all_gather", done=False), row(1, "_all_gather_base", 9, done=False), 1),
        (row(1, "all_to_all", done=False), row(1, "all_to_all", 9, done=False), 1),
        (row(1, "all_reduce", done=False), row(1, "all_reduce", done=False), 1),
    ],
)  # fmt: skip
def test_collectives_that_cannot_match(mine, other, num_kinds):
    (unfinished,) = first_unfinished(records([group(mine)], [group(other)]))
    assert len(unfinished.kinds) == num_kinds


def test_who_came_the_other_way_round_is_not_accused():
    """Finished numbers differ for a reason of their own, coalesced calls share one number."""
    finished = records([group(row(1, "all_reduce"))], [group(row(1, "broadcast"))])
    assert first_unfinished(finished) == []
    coalesced = [row(1, "all_gather", done=False), row(1, "all_reduce", done=False)]
    known = records([group(row(1, "barrier", done=False))], [group(*coalesced)])
    assert [len(one.kinds) for one in first_unfinished(known)] == [1]
    p2p = records([group(row(1, "send", done=False, p2p=True))], [group(row(1, "all_reduce"))])
    assert first_unfinished(p2p) == []


def test_two_groups_of_one_name_are_two():
    known = records(
        [group(row(1, "all_reduce", done=False), members=[0])],
        [group(row(1, "broadcast", done=False), members=[1], members_crc=8)],
    )
    assert [len(one.kinds) for one in first_unfinished(known)] == [1, 1]


def test_two_jobs_that_look_like_one_are_not_compared():
    mine, other = group(row(1, "all_reduce", done=False)), group(row(1, "broadcast", done=False))
    known = {"a": parse(text(0, mine)), "b": parse(text(0, other))}
    assert first_unfinished(known) == []


def test_only_the_oldest_unfinished_number_is_the_cause():
    mine = group(row(6, "broadcast", done=False), row(5, "all_reduce", done=False))
    other = group(row(6, "all_reduce", done=False), row(5, "all_reduce", done=False))
    (unfinished,) = first_unfinished(records([mine], [other]))
    assert (unfinished.sequence, len(unfinished.kinds)) == (5, 1)

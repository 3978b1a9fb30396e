"""Facts survive JSON as they are; what is no facts, broken or of another version is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dfx_agent.facts.document import FACTS_VERSION, dumped, loaded
from dfx_agent.facts.ledger import Crossing, LedgerNews, Progress
from dfx_agent.facts.memory import MemoryFacts
from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.run import RunFacts
from dfx_agent.facts.scalars import ReportedScalars, UpdateCounts
from dfx_agent.facts.seat import ProcessId, Seat
from dfx_agent.facts.steps import RoleSteps

EMPTY = RunFacts(run="r", node="here", now_seconds=1.5)
PARTS = {
    "seats": Seat,
    "steps": RoleSteps,
    "memory": MemoryFacts,
    "scalars": ReportedScalars,
    "updates": UpdateCounts,
    "batches": LedgerNews,
    "progress": Progress,
    "ranks": RankFacts,
}


# plain ones, and no ChainMap
st.register_type_strategy(
    Mapping, lambda of: st.dictionaries(*map(st.from_type, get_args(of)), max_size=2)
)


st.register_type_strategy(int, st.integers(1 - 2**63, 2**63 - 1))


def text(facts: RunFacts) -> str:
    """All that it holds, NaN equal to itself and a list no tuple; -0.0 is left out as 0.0 is."""
    return re.sub(r"-0\.0(?![\d.e])", "0.0", repr(asdict(facts)))


def problem_of(document: Any) -> str:
    """Why it was refused; "" where it was read."""
    try:
        loaded(json.dumps(document).encode())
    except ValueError as error:
        return str(error)
    return ""


def refusal(document: bytes) -> str:
    with pytest.raises(ValueError) as refused:
        loaded(document)
    return str(refused.value)


@pytest.mark.parametrize("part", PARTS)
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_was_dumped_is_loaded_as_it_was(part, data):
    known = (data.draw(st.from_type(PARTS[part])),)
    facts = replace(EMPTY, **{part: {"trainer": known} if part == "ranks" else known})
    assert text(loaded(dumped(facts))) == text(facts)


def test_the_document_names_itself_and_its_version():
    assert json.loads(dumped(EMPTY)).keys() == {"name", "version", "facts"}
    assert FACTS_VERSION == 3, "a new version is said in docs/concepts/overview.md"


def test_a_field_that_is_new_is_left_out():
    document = json.loads(dumped(EMPTY))
    document["facts"]["mood"] = "fine"
    assert loaded(json.dumps(document).encode()) == EMPTY


def test_a_field_that_has_a_default_may_be_missing():
    document = json.loads(dumped(EMPTY))
    document["facts"] = {"run": "r", "node": "here", "now_seconds": 1.5}
    assert loaded(json.dumps(document).encode()) == EMPTY


@pytest.mark.parametrize("version", [FACTS_VERSION + 1, 0, -1])
def test_another_version_is_refused_with_one_line(version):
    document = {**json.loads(dumped(EMPTY)), "version": version, "facts": "of another shape"}
    result = refusal(json.dumps(document).encode())
    remedy = "give hub and nodes the same dfx-agent"
    assert result == f"facts of version {version}, the hub reads {FACTS_VERSION}: {remedy}"


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (b"", "no facts: it is not JSON"),
        (b"\xff{}", "no facts: it is not JSON"),
        (b"[1]", "no facts: it does not say that it is dfx-facts"),
        (b'{"name": "other", "version": 1}', "no facts: it does not say that it is dfx-facts"),
        (b'{"name": "dfx-facts"}', "facts without a version"),
        (b'{"name": "dfx-facts", "version": "1"}', "facts without a version"),
        (b'{"name": "dfx-facts", "version": true}', "facts without a version"),
        (b'{"name": "dfx-facts", "version": 3}', "facts that cannot be read: facts Field required"),
    ],
)
def test_what_is_foreign_or_broken_is_refused_with_one_line(document, said):
    assert refusal(document) == said


def test_a_broken_field_is_named():
    document = json.loads(dumped(replace(EMPTY, seats=(Seat(role="trainer", label="0"),))))
    document["facts"]["seats"][0]["rank"] = "first"
    result = refusal(json.dumps(document).encode())
    assert result.startswith("facts that cannot be read: facts.seats.0.rank ")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda of: st.lists(of, max_size=3) | st.dictionaries(st.text(max_size=5), of, max_size=3),
    max_leaves=10,
)  # fmt: skip


@settings(max_examples=50)
@given(data=st.data())
def test_whatever_stands_in_a_field_is_read_or_refused_with_one_line(data):
    document = json.loads(dumped(EMPTY))
    part = data.draw(st.sampled_from([*PARTS, "run", "quiet_seconds"]))
    document["facts"][part] = data.draw(JSON)
    assert "\n" not in problem_of(document)


@settings(max_examples=50)
@given(data=st.data())
def test_a_mapping_with_keys_of_tuples_is_read_or_refused_with_one_line(data):
    step = {"wall_seconds": 1.0, "waited_seconds": 0.5, "tokens": None}
    lists = st.lists(JSON, max_size=3)
    step["parts"] = data.draw(JSON | st.fixed_dictionaries({"k": lists | JSON, "v": lists | JSON}))
    closed = {"step": 1, "begin_seconds": 0.0, "num_lost": 0, "ranks": {"0": step}}
    role = {
        "role": "t", "steps": [closed], "coverage_ratio": None, "num_ranks": 1, "world_size": 1,
    }  # fmt: skip
    document = json.loads(dumped(EMPTY))
    document["facts"]["steps"] = [role]
    assert "\n" not in problem_of(document)


@settings(max_examples=50)
@given(data=st.data())
def test_batches_are_read_or_refused_with_one_line(data):
    lists = st.lists(JSON, max_size=3)
    fields = data.draw(JSON | st.fixed_dictionaries({"k": lists | JSON, "v": lists | JSON}))
    crossing = {"boundary": "rollout", "step": 1, "time_ns": 1, "fields": fields}
    news = {
        "process": ["t", "0", 7],
        "num_lost": 0,
        "completed": data.draw(JSON | st.just([crossing])),
    }
    document = json.loads(dumped(EMPTY))
    document["facts"]["batches"] = [news]
    assert "\n" not in problem_of(document)


def test_a_field_of_a_batch_is_sent_again_only_if_it_changed():
    before = {("values", "prompts"): 7.0, ("num_rows", ""): 4.0, ("num_nonfinite", "uid"): 0.0}
    after = {**before, ("values", "rewards"): 9.0, ("num_rows", ""): 5.0}
    batches = (Crossing("rollout", 3, 1, before), Crossing("reward", 3, 2, after))
    facts = replace(EMPTY, batches=(LedgerNews(ProcessId("t", "0", 7), 0, (3,), batches),))
    (news,) = json.loads(dumped(facts))["facts"]["batches"]
    assert news["completed"][1]["fields"]["v"] == [None, 5.0, 0.0, 9.0]
    assert loaded(dumped(facts)) == facts


def test_what_has_its_default_is_not_written():
    facts = replace(EMPTY, ranks={"trainer": (RankFacts(label="0", step=3),)})
    assert json.loads(dumped(facts))["facts"] == {
        "run": "r", "node": "here", "now_seconds": 1.5,
        "ranks": {"trainer": [{"label": "0", "step": 3}]},
    }  # fmt: skip
    (rank,) = loaded(dumped(facts)).ranks["trainer"]
    assert (rank.label, rank.step, rank.world_size, rank.state) == ("0", 3, 1, "live")


@given(document=st.binary(max_size=40))
def test_bytes_from_anywhere_are_refused_with_one_line(document):
    assert "\n" not in refusal(document)

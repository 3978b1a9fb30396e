"""What is sent of a change gives back the whole."""

from __future__ import annotations

import copy
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from dfx_agent.web.delta import ROW_KEYS, diff, patched

LEAVES = st.none() | st.booleans() | st.integers(-2, 2) | st.floats(allow_nan=False) | st.text("ab")
KEYS = st.sampled_from(["a", "b", "__proto__", "v", "s", "o", "0", *ROW_KEYS[:3]])
ROWS = st.lists(st.dictionaries(KEYS, LEAVES, max_size=3), max_size=5)
DOCUMENTS = st.recursive(
    LEAVES | ROWS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


def text(document: object) -> str:
    """Tells true from 1, and 1 from 1.0."""
    return json.dumps(document, sort_keys=True)


@settings(deadline=None, max_examples=500)
@given(DOCUMENTS, DOCUMENTS)
def test_a_patch_gives_the_new_document(old, new):
    before = copy.deepcopy(old)
    patch = json.loads(json.dumps(diff(old, new)))
    assert text(patched(old, patch)) == text(new)
    assert text(old) == text(before)


@settings(deadline=None)
@given(DOCUMENTS)
def test_nothing_is_told_of_what_did_not_change(document):
    assert diff(document, copy.deepcopy(document)) is None


@settings(deadline=None)
@given(st.permutations(range(6)), st.integers(0, 6))
def test_rows_that_move_are_not_told_again(order, num_kept):
    old = [{"rank": str(rank), "gauges": {"x": "long" * 50}} for rank in range(6)]
    new = [old[place] for place in order[:num_kept]]
    patch = diff(old, new)
    assert text(patched(old, patch)) == text(new)
    assert "long" not in json.dumps(patch)


def test_a_change_in_a_row_is_told_alone():
    old = {"ranks": [{"role": "actor", "rank": str(rank), "step": 4} for rank in range(1000)]}
    new = copy.deepcopy(old)
    new["ranks"][500]["step"] = 5
    assert diff(old, new) == {"p": {"ranks": {"p": {"500": {"s": {"step": 5}}}}}}


def test_the_oldest_step_leaves_and_one_comes():
    old = [{"key": f"actor/{step}", "mean": 1.0} for step in range(8)]
    new = [*old[1:], {"key": "actor/8", "mean": 1.0}]
    assert diff(old, new) == {"o": [[1, 8], {"v": [new[-1]]}]}

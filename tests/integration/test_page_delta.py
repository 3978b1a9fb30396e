"""What is sent of a change, put together by the page's own script in a real Chromium."""

from __future__ import annotations

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dfx_agent.web.stream import ROW_KEYS, diff

LEAVES = (
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(-9, 9) | st.text("aé", max_size=3)
)
KEYS = st.sampled_from(["a", "b", "__proto__", "constructor", "v", "p", "0", *ROW_KEYS[:3]])
ROWS = st.lists(st.dictionaries(KEYS, LEAVES, max_size=3), max_size=5)
DOCUMENTS = st.recursive(
    LEAVES | ROWS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)
PATCHED = """async (cases) => {
  const { patched } = await import("./static/delta.js");
  const apply = ([old, patch]) => patch === null ? old : patched(old, patch);
  return JSON.stringify(JSON.parse(cases).map(apply));
}"""


@settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(DOCUMENTS, DOCUMENTS), min_size=1, max_size=20))
def test_the_page_puts_together_what_was_taken_apart(module_page, pairs):
    cases = json.dumps([(old, diff(old, new)) for old, new in pairs])
    got = json.loads(module_page.evaluate(PATCHED, cases))
    # numbers are numbers to the page: 1.0 comes back as 1
    assert _spelled(got) == _spelled([new for _, new in pairs])


def _spelled(value):
    if isinstance(value, dict):
        return {key: _spelled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_spelled(item) for item in value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return ("number", float(value)) if is_number else repr(value)

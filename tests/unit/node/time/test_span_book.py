"""Which stage is around a span, of the newest spans of a process."""

from __future__ import annotations

from dfx_agent.node.time.account import SpanEvent
from dfx_agent.node.time.span_book import SpanBook
from dfx_agent.wire.records import STAGE, WAIT


def row(span: int, parent: int, kind: int = STAGE, name: str = "rollout"):
    return 10 * span, span, 10 * span + 5, parent, kind, name


def test_the_innermost_stage_is_found_through_other_spans():
    book = SpanBook()
    book.note({1: row(1, 0), 2: row(2, 1, WAIT, "queue")}, {3: row(3, 2, WAIT, "barrier")})
    assert [book.stage_of(span) for span in (0, 1, 2, 3)] == ["", "rollout", "rollout", "rollout"]
    book.note({4: row(4, 1, name="decode")}, {})
    assert book.stage_of(4) == "decode"


def test_a_stage_that_is_open_counts_and_one_that_is_not_known_does_not():
    book = SpanBook()
    book.note_open(SpanEvent(5, 0, STAGE, "update", 50, None))
    assert (book.stage_of(5), book.stage_of(6)) == ("update", "")


def test_old_spans_are_released_after_two_polls():
    book = SpanBook()
    book.note({1: row(1, 0)}, {})
    for first in (1000, 2000):
        book.note({n: row(n, 0) for n in range(first, first + 128)}, {})
        assert book.stage_of(1) == ("rollout" if first == 1000 else "")


def test_a_parent_that_comes_after_its_child_ends_the_search():
    book = SpanBook()
    book.note({1: row(1, 2, WAIT, "queue"), 2: row(2, 1, WAIT, "queue")}, {})
    assert book.stage_of(2) == ""

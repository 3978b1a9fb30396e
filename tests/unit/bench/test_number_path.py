"""The page "How a number travels" lists the files that a trace finds."""

from __future__ import annotations

import pytest

from bench.number_path import GRAD_NORM, PAGE, READERS, STAGE, WAIT, listed, paths, render

MAX_FILES = 20
NUM_TRACES = 5


@pytest.fixture(scope="module")
def page():
    return listed(PAGE.read_text(encoding="utf-8"))


def test_the_page_has_the_three_numbers_and_few_files(page):
    assert set(page) == {STAGE, GRAD_NORM, WAIT}
    for files in page.values():
        assert {file.partition("/")[0] for file in files} >= {"node", "exporters"}
        assert len(files) <= MAX_FILES


def test_the_page_says_which_readers_are_left_out():
    text = PAGE.read_text(encoding="utf-8")
    assert [reader for reader in READERS if f"`{reader.rstrip('/')}`" not in text] == []


def test_what_is_rendered_is_read_back():
    found = {STAGE: ("node/track.py",), GRAD_NORM: (), WAIT: ("node/process.py", "job/steps.py")}
    assert listed("head\n" + render(found)) == {name: set(files) for name, files in found.items()}


@pytest.mark.timeout(300)
def test_a_trace_finds_the_files_of_the_page(page):
    """A trace misses a file where two of its times are equal.

    It finds one file more where a poll falls into the wait. So the page must have each file that
    all traces find, and each file of the page must be found by one of them.
    """
    pytest.importorskip("torch")
    traces = []
    for _ in range(NUM_TRACES):
        traces.append(paths())
        by_name = {name: [set(trace[name]) for trace in traces] for name in page}
        always = {name: set.intersection(*found) for name, found in by_name.items()}
        once = {name: set.union(*found) for name, found in by_name.items()}
        if all(always[name] <= files <= once[name] for name, files in page.items()):
            return
    assert (always, once) == (page, page), "run `python -m bench.number_path --page`"

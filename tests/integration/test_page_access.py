"""The page for everybody: axe-core finds nothing serious, and 390 px are enough."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted_page import overflow_px, poll, serve, wait_for_charts
from scripted_source import ScriptedSource
from scripted_torch import CLEAR, STRAGGLER

AXE = Path(__file__).parents[1] / "page/node_modules/axe-core/axe.min.js"
VIOLATIONS = """axe.run(document, { resultTypes: ["violations"] }).then((found) =>
  found.violations.map((row) => `${row.impact} ${row.id}: ${row.nodes.map((n) => n.target)}`))"""
# texts that are cut although they are not told anywhere else: names have a title
CUT = """() => [...document.querySelectorAll(
    "h1, h2, strong, dt, dd, .action, .views a, .scalar-name")]
  .filter((node) => node.checkVisibility() && node.scrollWidth > node.clientWidth + 1
    && getComputedStyle(node).display !== "inline" && !node.closest("[title]"))
  .map((node) => node.textContent)"""
OVERLAPS = """() => {
  const boxes = [...document.querySelectorAll(".facts dd, .facts dt, .brand, .run-id, .reach")]
    .filter((node) => node.checkVisibility()).map((node) => [node, node.getBoundingClientRect()]);
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1
    && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  return boxes.flatMap(([node, box], index) => boxes.slice(index + 1)
    .filter(([other, there]) => !node.contains(other) && !other.contains(node) && meet(box, there))
    .map(([other]) => `${node.textContent} / ${other.textContent}`));
}"""


@pytest.fixture
def straggling():
    source = ScriptedSource(stuck_rank=2, seconds_into_step=75)
    source.verdicts = (STRAGGLER, *CLEAR[:2])
    return source


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(open_page, straggling, scheme):
    if not AXE.exists():
        pytest.skip("no axe-core: `make page` installs it, where there is Node")
    with serve(straggling) as server:
        page = open_page(server.url, (1280, 900), scheme)
        wait_for_charts(page)
        page.locator("#verdict-list .toggle").first.click()
        page.evaluate(AXE.read_text())
        assert page.evaluate(VIOLATIONS) == []


def test_a_telephone_shows_every_name(open_page, straggling):
    with serve(straggling) as server:
        page = open_page(server.url, (390, 844))
        wait_for_charts(page)
        assert overflow_px(page) == 0
        assert page.evaluate(CUT) == []
        assert page.evaluate(OVERLAPS) == []
        assert page.locator("#rank-rows .stage-name").first.is_visible()
        poll(page, "document.querySelector('#rank-rows .c-delay').textContent !== ''")

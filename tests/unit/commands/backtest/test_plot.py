"""The page of `backtest --plot`."""

from __future__ import annotations

import json
import re

import pytest

from dfx_agent.commands.backtest import plot
from dfx_agent.commands.backtest.episodes import Episode
from dfx_agent.commands.backtest.plot import Curves, render

HOSTILE = "</script><script>alert('x')</script>"


@pytest.fixture(autouse=True)
def no_plotly(monkeypatch) -> None:
    """5 MB of somebody else's script."""
    monkeypatch.setattr(plot, "_plotly", lambda: "let Plotly;")


def curves(name: str) -> Curves:
    return Curves([1, 2], {name: ([0.5, None], [0.1, 0.1], [0.9, 0.9])})


def test_a_run_with_a_page_is_open_and_its_numbers_are_in_the_file():
    alert = Episode("Reward < 0", "critical", 1, 2, 1, {"reward": 2, "length": 3})
    page = render([("a", curves("reward"), [alert]), ("b", curves("x"), [])], "1 of 2 runs")
    assert page.count("<details open>") == 1
    assert "would have paged at step 2" in page
    assert "<td>Reward &lt; 0" in page
    assert "reward since 2, length since 3" in page
    data = re.search(r'<script type="application/json" id="runs">(.*?)</script>', page, re.DOTALL)
    first, second = json.loads(data[1])
    assert first["traces"][2]["y"] == [0.5, None]
    assert first["layout"]["shapes"][0]["x0"] == 1
    assert second["layout"]["shapes"] == []


def test_nothing_that_a_log_names_is_run():
    alert = Episode(HOSTILE, "critical", 1, 2, 1, {HOSTILE: 2})
    page = render([(HOSTILE, curves(HOSTILE), [alert])], HOSTILE)
    assert HOSTILE not in page
    assert page.count("<script") == 3
    assert page.count("&lt;/script&gt;&lt;script&gt;") == 4
    assert json.loads(page.split('id="runs">')[1].split("</script>")[0])[0]["layout"]["yaxis"][
        "title"
    ] == {"text": HOSTILE}

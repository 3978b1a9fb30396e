"""Every name that a framework's documents list becomes a series of its own, with the right value.

The lists are in ``tests/unit/catalogue/documents``; each says where it comes from.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_page import samples

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.catalogue.native import load
from dfx_agent.catalogue.spec import PER_RANK, by_name
from dfx_agent.exporters.prometheus.exporter import PrometheusExporter
from dfx_agent.wire import Identity, SegmentWriter, records

DOCUMENTS = Path(__file__).parents[2] / "catalogue" / "documents"


def expanded(line: str) -> Iterator[str]:
    """Each name that a line with {a,b} stands for."""
    fixed = re.split(r"\{([^}]*)\}", line)
    choices = [part.split(",") if i % 2 else [part] for i, part in enumerate(fixed)]
    return ("".join(parts) for parts in itertools.product(*choices))


def logs() -> Iterator[tuple[str, str, list[str]]]:
    """(framework, what is logged together, its names) for each list."""
    for path in sorted(DOCUMENTS.glob("*.txt")):
        title, names = "", list[str]()
        for line in [*path.read_text().splitlines(), "== end"]:
            if line.startswith("=="):
                if names:
                    yield path.stem, title, names
                title, names = line[2:].strip(), []
            elif line and not line.startswith("#"):
                names.extend(expanded(line))


LOGS = list(logs())


def test_the_lists_are_read():
    assert {framework for framework, _, _ in LOGS} == {"lightrft", "prime_rl", "roll", "unilab"}
    assert list(expanded("a/{b,c}{,/d}")) == ["a/b", "a/b/d", "a/c", "a/c/d"]


@pytest.fixture
def page(request, dfx_dir) -> dict[str, list[tuple[dict[str, str], float]]]:
    """What a scrape shows of a job that logs these names: 1, 2, 3, ..."""
    framework, names = request.param
    identity = Identity(run="r", role="trainer", rank=0, world_size=1, framework=framework)
    segment = SegmentWriter(str(dfx_dir), identity, num_records=4096)
    for value, name in enumerate(names, 1):
        segment.emit(value, value, float(value), 3, 0, 0, 0, records.SCALAR, segment.add_name(name))
    agent = Agent(Config(str(dfx_dir)))
    agent.poll()
    found = samples(PrometheusExporter(agent))
    segment.finish()
    segment.close()
    agent._folder.close()
    return found


@pytest.mark.parametrize(
    ("framework", "names", "page"),
    [(framework, names, (framework, names)) for framework, _, names in LOGS],
    ids=[f"{framework}: {title}" for framework, title, _ in LOGS],
    indirect=["page"],
)
def test_a_documented_name_is_a_series(framework, names, page):
    assert [row["key"] for row, _ in page.get("dfx_native_metric", [])] == []
    of_series: dict[tuple, str] = {}
    for value, name in enumerate(names, 1):
        native = load(framework).find(name)
        assert native is not None, name
        labels = {label: text for label, text in native.labels.items() if text}
        series = (native.metric, *sorted(labels.items()))
        assert of_series.setdefault(series, name) == name, "two names of one log, one series"
        rows = page[by_name()[native.metric].sample_name]
        shown = [number for row, number in rows if told(row) == labels]
        assert shown == [pytest.approx(value * native.scale)], name


def told(row: dict[str, str]) -> dict[str, str]:
    """The labels that say something of the value itself."""
    return {name: text for name, text in row.items() if text and name not in PER_RANK}

"""The page of bounds has the numbers that the code checks."""

from pathlib import Path

import pytest

from dfx_agent.base import text
from dfx_agent.catalogue.native import time_series
from dfx_agent.commands.hub import node_timelines
from dfx_agent.commands.serve import span_segments, span_traces
from dfx_agent.exporters.otel import session
from dfx_agent.facts import bounds
from dfx_agent.hub import reporting_nodes
from dfx_agent.hub.otlp import body_reader, endpoint, intake, requests
from dfx_agent.job import folds
from dfx_agent.judge import words
from dfx_agent.node.collectives import matching
from dfx_agent.node.engines import exposition, scrape, watch
from dfx_agent.wire import layout

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "bounds.md"
MIB = 1 << 20

# beginning of a row of the page, and what it says
ROWS = {
    "request, as it travels": (
        f"{endpoint.MAX_BODY_BYTES // MIB} MiB, {endpoint.BODY_SECONDS:.0f} s"
    ),
    "request, unpacked": f"{endpoint.MAX_PLAIN_BYTES // MIB} MiB",
    "fields of a request": f"{body_reader.MAX_FIELDS:,}",
    "documents in a request": f"{requests.MAX_RECORDS:,}",
    "document": f"{bounds.MAX_BYTES // MIB} MiB, {bounds.MAX_VALUES:,} values",
    "processes of a run on one node": f"{bounds.MAX_PROCESSES:,}",
    "roles of a run": f"{bounds.MAX_ROLES}",
    "rollout engines of a run on one node": (
        f"{bounds.MAX_ENGINES:,}, with {bounds.MAX_ENGINE_VALUES:,} values of each kind"
    ),
    "counters, stages or devices of a rank": f"{bounds.MAX_NAMES_OF_RANK}",
    "name of a run, node, role, rank or reported number": (
        f"{bounds.MAX_NAME_CHARACTERS:,} characters"
    ),
    "number": f"{bounds.MAX_NUMBER.bit_length() - 1} bits",
    "jobs of a hub": f"{folds.MAX_JOBS}",
    "nodes of a hub": f"{reporting_nodes.MAX_NODES:,}",
    "agents of a hub": f"{intake.MAX_AGENTS:,}",
    "requests that wait at a hub": f"{endpoint._WAITING:,}",
    "spans in a request": f"{requests.MAX_SPANS:,}",
    "attributes of a span or of its process": f"{requests.MAX_ATTRIBUTES}",
    "span": f"{requests.MAX_SPAN_BYTES >> 10} KiB",
    "rank, step": (
        f"{text.LARGEST_COUNT.bit_length()} bits, {span_traces._MAX_STEP.bit_length()} bits"
    ),
    "spans of one trace": f"{span_traces._MAX_OF_TRACE:,}",
    "spans whose traces are not over": f"{span_traces._MAX_SPANS:,}",
    "ranks that send spans": f"{span_segments._MAX_RANKS:,}",
    "names in a segment": f"{layout.MAX_NAMES:,} in {layout.NAMES_BYTES >> 10} KiB",
    "reported numbers of a run, by name": f"{time_series.MAX_KEYS:,}",
    "points of one reported number": f"{time_series._MAX_POINTS:,}",
    "rank, world size, number of nodes": f"{text.LARGEST_COUNT.bit_length()} bits",
    "absent ranks or nodes in a sentence": f"{words._MAX_RANKS}, and how many more",
    "groups of collectives that have rows of their own": f"{matching._MAX_TITLES}",
    "metrics of a rollout engine": (
        f"{scrape.MAX_BYTES // MIB} MiB, {exposition.MAX_SERIES:,} series"
    ),
    "engines of a machine": f"{watch.MAX_ENDPOINTS}",
    "timeline that a hub gets from a node": f"{node_timelines.MAX_BYTES // MIB} MiB, 3 s",
    "answer of a hub or of an OpenTelemetry receiver": f"{session.MAX_ANSWER_BYTES >> 10} KiB",
}


def rows() -> dict[str, str]:
    """What -> at most, of all tables."""
    cells = [line.split("|") for line in PAGE.read_text(encoding="utf-8").splitlines()]
    return {row[1].strip(): row[2].strip() for row in cells if len(row) > 3}


@pytest.mark.parametrize("what", ROWS)
def test_the_page_says_the_bound_that_is_checked(what: str) -> None:
    assert rows()[what] == ROWS[what]

"""The committed boards as plain JSON, and their queries as Prometheus would get them."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "dashboards" / "generated"
BOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


@dataclass(frozen=True)
class Query:
    """One target of a panel, or an annotation (panel "annotation: NAME")."""

    board: str
    panel: str
    text: str
    legend: str
    is_instant: bool

    def __str__(self) -> str:
        return f"{self.board}/{self.panel}: {self.text}"


def panels(board: dict) -> list[dict]:
    """Without rows, with those inside folded rows."""
    rows = (row for row in board["panels"] if row["type"] == "row")
    return [*visible(board), *(panel for row in rows for panel in row.get("panels") or ())]


def visible(board: dict) -> list[dict]:
    """Without rows and what is folded in them: what a browser asks for when the board opens."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def panel_queries() -> Iterator[Query]:
    for name, board in BOARDS.items():
        for panel in panels(board):
            for target in panel.get("targets", ()):
                legend = target.get("legendFormat", "")
                instant = target.get("instant", False)
                yield Query(name, panel["title"], target["expr"], legend, instant)


def annotation_queries() -> Iterator[Query]:
    for name, board in BOARDS.items():
        for row in board["annotations"].get("list", ()):
            if row.get("expr"):
                yield Query(name, f"annotation: {row['name']}", row["expr"], "", is_instant=False)


def filled(text: str, **variables: str) -> str:
    """With Grafana's variables put in; KeyError for one that nobody gave."""
    known = {
        "__rate_interval": "10s",
        "__rate_interval_ms": "10000",
        "__interval_ms": "2000",
        "__from": "0",
        "__range": "5m",
        "window": "30s",
        "rank": ".*",
        "node": ".*",
        "replica": ".*",
        **variables,
    }
    return re.sub(r"\$([a-z_]\w*)", lambda match: known[match[1]], text)

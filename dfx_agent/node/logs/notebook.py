"""Training output in a Jupyter notebook: tables of the Trainer's progress, and printed reports.

Each cell with reports is a run of its own: a notebook often trains more than once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from dfx_agent.node.logs.console import has_report, read_console_lines
from dfx_agent.node.logs.key_map import KeyMap
from dfx_agent.node.logs.lines import open_text
from dfx_agent.node.logs.printed_pairs import has_pairs, read_pair_lines
from dfx_agent.node.logs.printed_tables import column_names, table_record
from dfx_agent.node.logs.run import NotALogError, Notes, Part, Record, UnreadableLogError
from dfx_agent.node.logs.verl_console import VerlLines

# a notebook is read whole; those with many pictures have 20 MiB
MAX_NOTEBOOK_CHARS = 64 << 20


def notebook_parts(path: Path, key_map: KeyMap) -> list[Part]:
    """Raises NotALogError if there are no records."""
    found = []
    for i, outputs in enumerate(_outputs(path), start=1):
        records = _html_records(outputs)
        if records:
            found.append(Part(f"cell {i}", partial(_as_read, records)))
            continue
        lines = "\n".join(_texts(outputs)).splitlines(keepends=True)
        if any(VerlLines(Notes()).records(lines)):
            found.append(Part(f"cell {i}", partial(_printed_by_verl, lines)))
        elif has_report(lines, key_map) or has_pairs(lines, key_map):
            found.append(Part(f"cell {i}", partial(_printed, lines, key_map)))
    if not found:
        raise NotALogError(f"{path} is a notebook without training output: save it after the run")
    return found if len(found) != 1 else [found[0]._replace(name="")]


def _as_read(records: list[Record], _notes: Notes) -> Iterator[Record]:
    return iter([dict(record) for record in records])


def _printed(lines: list[str], key_map: KeyMap, notes: Notes) -> Iterator[Record]:
    if has_report(lines, key_map):
        return read_console_lines(lines, notes, key_map)
    return read_pair_lines(lines, notes, key_map)


def _printed_by_verl(lines: list[str], notes: Notes) -> Iterator[Record]:
    return VerlLines(notes).records(lines)


def _outputs(path: Path) -> Iterator[list[dict[str, Any]]]:
    """The outputs of each cell. Raises UnreadableLogError if the file is no notebook."""
    with open_text(path) as file:
        text = file.read(MAX_NOTEBOOK_CHARS + 1)
    if len(text) > MAX_NOTEBOOK_CHARS:
        raise UnreadableLogError(f"{path} is larger than {MAX_NOTEBOOK_CHARS >> 20} MiB")
    try:
        notebook = json.loads(text)
        cells = notebook["cells"]
        for cell in cells:
            outputs = cell.get("outputs", [])
            yield [output for output in outputs if isinstance(output, dict)]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise UnreadableLogError(f"{path} is not a notebook: is it complete?") from None


def _texts(outputs: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Printed text; of a result without HTML its plain text."""
    for output in outputs:
        data = output.get("data")
        if isinstance(data, dict) and "text/html" not in data:
            yield _joined(data.get("text/plain"))
        yield _joined(output.get("text"))


def _html_records(outputs: Iterable[dict[str, Any]]) -> list[Record]:
    """Records of the last table with a step: the Trainer repeats the whole table each time."""
    latest: list[Record] = []
    for output in outputs:
        data = output.get("data")
        html = _joined(data.get("text/html")) if isinstance(data, dict) else ""
        if "<table" in html:
            parser = _Tables()
            parser.feed(html)
            latest = max((latest, *map(_records, parser.tables)), key=len)
    return latest


def _records(table: list[list[str]]) -> list[Record]:
    if not table or len(table[0]) < 2 or table[0][0].strip().lower() != "step":
        return []
    names = column_names(table[0])
    found = (table_record(names, cells) for cells in table[1:])
    return [record for record in found if record is not None]


def _joined(text: Any) -> str:
    if isinstance(text, list):
        return "".join(part for part in text if isinstance(part, str))
    return text if isinstance(text, str) else ""


class _Tables(HTMLParser):
    """Cells of every table; nested tables do not occur here."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self._is_cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        if tag == "table":
            self.tables.append([])
        elif tag == "tr" and self.tables:
            self.tables[-1].append([])
        elif tag in {"td", "th"} and self.tables and self.tables[-1]:
            self.tables[-1][-1].append("")
            self._is_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in {"td", "th", "tr", "table"}:
            self._is_cell = False

    def handle_data(self, data: str) -> None:
        if self._is_cell:
            self.tables[-1][-1][-1] += data.strip()

"""An evidence document as one HTML page: no script, no network, everything escaped."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from dfx_agent.durations import age_text

_STYLE = """
:root { color-scheme: light dark; --line: #d5d9e0; --soft: #5b6472; --bad: #b3261e; --paper: #fff;
  --ink: #1b1f24; --band: #f4f6f8; --warn: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --line: #3a414b; --soft: #9aa4b2; --bad: #ff8a80;
  --paper: #14171b; --ink: #e6e9ee; --band: #1d2127; --warn: #ffc46b; } }
body { margin: 2rem auto; max-width: 75rem; padding: 0 1.5rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0; } .soft { color: var(--soft); }
.verdict { border-left: 4px solid var(--line); background: var(--band); margin: .5rem 0;
  padding: .5rem 1rem; } .found { border-color: var(--bad); } .found strong { color: var(--bad); }
.insufficient { border-color: var(--warn); } ul { margin: .25rem 0; padding-left: 1.25rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; min-width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .75rem .3rem 0; text-align: left;
  vertical-align: top; } th { color: var(--soft); font-weight: 500; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.blamed td:first-child { border-left: 4px solid var(--bad); padding-left: .5rem; }
pre { background: var(--band); margin: .25rem 0 1rem; overflow-x: auto; padding: .75rem 1rem;
  font: 13px/1.45 ui-monospace, monospace; }
"""


def render(document: Mapping[str, Any]) -> str:
    """The page of an evidence file, or of a run now. KeyError when fields are missing."""
    run = document["run"]
    title = f"{run['run']}: {_title(document)}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(_subtitle(document))}</p>',
        "<h2>Verdicts</h2>",
        *(map(_verdict, run["verdicts"]) if run["verdicts"] else ["<p>Nothing was judged.</p>"]),
        "<h2>Ranks</h2>",
        _ranks(document),
        *_collectives(document),
        *_stacks(document),
        "<h2>Last steps</h2>",
        _steps(run["steps"]),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _title(document: Mapping[str, Any]) -> str:
    verdict = document.get("verdict")
    return f"{verdict['kind']} of {verdict['role']}" if verdict else "report"


def _subtitle(document: Mapping[str, Any]) -> str:
    run = document["run"]
    facts = [f"node {document['node']}", f"dfx-agent {document['agent_version']}"]
    if run["framework"]:
        facts.insert(0, run["framework"])
    if "outcome" in document:
        facts.append(f"found {_clock(document['begin_seconds'])}")
        end = document["end_seconds"]
        facts.append(f"{document['outcome']} {_clock(end)}" if end else "not over when written")
    else:
        facts.append(f"as of {_clock(document['time_seconds'])}")
    return " · ".join(facts)


def _verdict(verdict: Mapping[str, Any]) -> str:
    state = verdict["state"].split()[0]
    facts = [
        f"{name}: {value}"
        for name, value in (
            ("cause", verdict["cause"]),
            ("to blame", ", ".join(verdict["ranks"])),
            ("stage", verdict["stage"]),
            ("step", verdict["step"]),
            ("since", verdict["since_seconds"] and _clock(verdict["since_seconds"])),
        )
        if value not in {None, ""}
    ]
    lines = "".join(f"<li>{escape(line)}</li>" for line in verdict["evidence"])
    return (
        f'<div class="verdict {escape(state)}"><p><strong>'
        f"{escape(verdict['kind'])} ({escape(verdict['role'])}): {escape(verdict['state'])}"
        f"</strong> {escape(verdict['summary'])}</p>"
        f'<p class="soft">{escape("; ".join(facts))}</p><ul>{lines}</ul></div>'
    )


def _ranks(document: Mapping[str, Any]) -> str:
    run = document["run"]
    blamed = {
        (verdict["role"], rank)
        for verdict in run["verdicts"]
        if verdict["state"] == "found"
        for rank in verdict["ranks"]
    }
    at = document.get("begin_seconds") or document["time_seconds"]
    places = {(place["role"], place["rank"]): place for place in document["places"]}
    rows = []
    for rank in run["ranks"]:
        key = rank["role"], rank["rank"]
        last = rank["last_event_seconds"]
        groups = {group["group"]: group["num_enqueued"] for group in rank["groups"]}
        reached = places[key]["last_collective"] if key in places else groups
        cells = [
            rank["role"],
            rank["rank"],
            rank["pid"],
            rank["state"],
            rank["step"],
            _opened(rank["inflight"]),
            None if last is None else f"{max(0.0, at - last):.1f} s",
            ", ".join(f"{group} #{number}" for group, number in sorted(reached.items())),
        ]
        rows.append((cells, key in blamed))
    headings = ("role", "rank", "pid", "state", "step", "open now", "last record", "collectives")
    return _table(headings, rows, numbers={1, 2, 4, 6})


def _opened(inflight: Sequence[Mapping[str, Any]]) -> str:
    """Open spans from the outermost in, with how long the innermost one has been open."""
    if not inflight:
        return ""
    names = [
        span["name"] + ("" if span["sequence"] is None else f" #{span['sequence']}")
        for span in inflight
    ]
    return f"{' > '.join(names)} ({inflight[-1]['elapsed_seconds']:.1f} s)"


def _collectives(document: Mapping[str, Any]) -> Iterable[str]:
    """Of ranks whose flight recorder was read; what has not finished is marked."""
    # evidence of an older agent has none
    places = [place for place in document["places"] if place.get("recorded_collectives")]
    if places:
        yield "<h2>Last collectives by torch's flight recorder, the newest first</h2>"
    for place in places:
        recorded = place["recorded_collectives"]
        lines = [_collective(one, document["begin_seconds"]) for one in recorded]
        title = escape(f"{place['role']} {place['rank']}: {lines[0]}")
        text = escape("\n".join(lines))
        yield f"<details><summary>{title}</summary><pre>{text}</pre></details>"


def _collective(issued: Mapping[str, Any], at: float) -> str:
    """As in "all_reduce [1048576] float32, #42 of group 0, issued 14 min before, not finished"."""
    number = "" if issued["sequence"] is None else f"#{issued['sequence']} of "
    facts = [
        " ".join(filter(None, (issued["operation"], issued["tensors"]))),
        f"{number}group {issued['group']} ({issued['group_description'] or issued['backend']})",
        f"issued {age_text(at - issued['issued_seconds'])} before",
    ]
    return ", ".join(facts if issued["is_finished"] else [*facts, "not finished"])


def _stacks(document: Mapping[str, Any]) -> Iterable[str]:
    if "verdict" not in document:
        return
    yield "<h2>Main threads, ranks at the same place together</h2>"
    for group in document["stacks"]:
        ranks = escape(", ".join(group["ranks"]))
        frames = escape("\n".join(reversed(group["frames"])))
        yield f"<p>Rank {ranks}, innermost call first</p><pre>{frames}</pre>"
    without = [place["rank"] for place in document["places"] if not place["threads"]]
    if without:
        yield f"<p>No stacks of rank {escape(', '.join(without))}.</p>"
    for place in document["places"]:
        if place["threads"]:
            yield _threads(place)


def _threads(place: Mapping[str, Any]) -> str:
    blocks = [
        f"{thread['name'] or 'thread'} ({thread['native_id']})\n"
        + "\n".join(f"  {frame}" for frame in reversed(thread["frames"]))
        for thread in place["threads"]
    ]
    title = f"Threads of {place['role']} {place['rank']}: {len(blocks)}"
    return (
        f"<details><summary>{escape(title)} (by {escape(place['stacks_from'])})</summary>"
        f"<pre>{escape(chr(10).join(blocks))}</pre></details>"
    )


def _steps(steps: Sequence[Mapping[str, Any]]) -> str:
    if not steps:
        return "<p>No step was closed.</p>"
    rows = []
    for step in reversed(steps):
        splits = [cell["split"] for cell in step["cells"]]
        waits = [sum(sum(by.values()) for by in s["wait_seconds"].values()) for s in splits]
        cells = [
            step["step"],
            step["role"],
            f"{step['end_seconds'] - step['begin_seconds']:.3f} s",
            _mean(split["active_seconds"] for split in splits),
            _mean(waits),
            _mean(split["idle_seconds"] for split in splits),
            None if step["bubble_ratio"] is None else f"{step['bubble_ratio']:.1%}",
            ", ".join(step["missing_ranks"]),
        ]
        rows.append((cells, False))
    headings = ("step", "role", "took", "active", "waits", "idle", "bubble", "missing ranks")
    return _table(headings, rows, numbers={0, 2, 3, 4, 5, 6})


def _mean(values: Iterable[float]) -> str | None:
    """Over ranks, in seconds."""
    known = list(values)
    return f"{sum(known) / len(known):.3f} s" if known else None


def _table(
    headings: Sequence[str], rows: Iterable[tuple[Sequence[Any], bool]], numbers: set[int]
) -> str:
    def cell(tag: str, column: int, value: Any) -> str:
        kind = ' class="number"' if column in numbers else ""
        return f"<{tag}{kind}>{escape('–' if value is None else str(value))}</{tag}>"

    head = "".join(cell("th", column, text) for column, text in enumerate(headings))
    body = "".join(
        f"<tr{' class=blamed' if is_blamed else ''}>"
        + "".join(cell("td", column, value) for column, value in enumerate(cells))
        + "</tr>"
        for cells, is_blamed in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(seconds))

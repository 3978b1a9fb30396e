"""The agent's alerts over real training runs: false pages, collapses found, delay.

Few real runs collapse: bench/injections.py puts faults into the healthy ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.estimates import median, quantile
from bench.measurement import Bar, Result, report
from bench.real_runs import Labelled, delay_rows, healthy_runs, labelled_runs, pages
from dfx_agent.commands.backtest import replay


def measure(*, quick: bool) -> list[Result]:
    healthy = healthy_runs(quick=quick)
    if not healthy:
        return []
    bad = [run for run in labelled_runs() if run.onset_row is not None]
    delays = [delay_rows(replay(run.rows), run.onset_row or 0) for run in bad]
    return [_false_pages(healthy), *_collapses(delays)]


def _false_pages(runs: Sequence[Labelled]) -> Result:
    num_pages = sum(len(pages(replay(run.rows))) for run in runs)
    num_rows = sum(len(run.rows) for run in runs)
    rate = 100 * num_pages / num_rows
    # 3 / n: where nothing was seen, the upper end of its 95 % interval
    spread = {"low": rate, "high": rate if num_pages else 300 / num_rows}
    note = f"{num_pages} pages, {len(runs)} healthy runs; 3 / n where none was seen"
    name = "false pages per 100 healthy steps"
    return Result(name, rate, "", num_rows, spread, bar=Bar(0.01), note=note)


def _collapses(delays: Sequence[int | None]) -> list[Result]:
    if not delays:
        return []
    found = [float(delay) for delay in delays if delay is not None]
    share = len(found) / len(delays)
    spread = {"low": share, "high": share}
    bar = Bar(0.9, at_least=True)
    results = [Result("collapses found", share, "", len(delays), spread, bar=bar)]
    if found:
        spread = {"p10": quantile(found, 0.1), "p90": quantile(found, 0.9)}
        name = "collapses, onset to page"
        results.append(Result(name, median(found), "steps", len(found), spread, bar=Bar(5)))
    return results


if __name__ == "__main__":
    report(measure)

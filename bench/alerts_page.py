"""docs/reference/alerts.md: what was tried and how often the alerts are wrong.

``python -m bench.alerts_page > docs/reference/alerts.md`` over the labelled runs of
$DFX_BENCH_DATA (its runs/ and INVENTORY.csv), of the commit that is checked out.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench import native_logs
from bench.real_runs import DEFAULT_DATA
from dfx_agent.commands.backtest.error_rates import EARLY_ROWS, MAX_DELAY_ROWS

ROOT = Path(__file__).resolve().parents[1]

_PAGE = """# How often the alerts are wrong

Written by `python -m bench.alerts_page`, from commit {commit}. Do not edit.

What was tried: finished training runs that other people published, each with what one reader saw
in it before any detector ran (healthy, collapse with the row of its onset, ambiguous). Each run was
replayed through the signals and alerts that the agent uses live, with the thresholds of the
catalogue.

{table}
- A *collapse is found* when a page begins between {early} rows before its onset and {late} rows
  after it; the *delay* is from the onset to that page. Its interval is Wilson's.
- A page or warning is *false* in a healthy run, and in a run that collapses when it begins more
  than {early} rows before the onset. Intervals are Poisson's, exact. Where nothing was seen the
  upper end is what the number of rows allows to say.
- Ambiguous runs count as tried, and neither as healthy nor as collapses.
- *Sample*: "in" are runs on which a parameter of the detector was chosen, "out" are runs that
  nobody had looked at. "not said" is what the labels leave open: read it as "in".

## Logs in their native formats

{native}
The error of the onset is between the step that the page names and the row that the reader named.
A run is *judged* when at least one row could page. Logs are read as `backtest` reads them, with no
option (`python -m bench.native_logs`).

## Your own runs

```
dfx-agent backtest DIR --summary
```

gives this table for a folder of logs in any form that `backtest` reads. Labels are a file
`LABELS.csv` in the folder that anybody can write:

```
path,kind,onset_row,sample
run1/metrics.jsonl,healthy,,out
run2/train.log,collapse,412,out
```

`kind` is healthy, collapse or ambiguous; `onset_row` counts step reports from 0. A run that
could not be judged is in no row of the table, and is named: `backtest`
says which signals it found, from which keys, and `--map reward=KEY` names those it did not know.
"""


def main() -> int:
    data = Path(os.environ.get("DFX_BENCH_DATA", DEFAULT_DATA))
    if not (data / "INVENTORY.csv").is_file():
        print(f"bench: no INVENTORY.csv in {data}: nothing is written", file=sys.stderr)
        return 1
    command = [sys.executable, "-m", "dfx_agent", "backtest", "--summary", str(data / "runs")]
    table = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    page = _PAGE.format(
        commit=_commit(),
        table=table,
        native=native_logs.table(data / "native"),
        early=EARLY_ROWS,
        late=MAX_DELAY_ROWS,
    )
    print(page, end="")
    return 0


def _commit() -> str:
    """Of what is checked out, with "+" when it was changed."""
    command = ["git", "describe", "--always", "--exclude=*", "--dirty=+"]
    return subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

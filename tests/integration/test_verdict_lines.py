"""Which lines the page makes of a run: their order, and what each says; in a real Chromium."""

from __future__ import annotations

import pytest

JUDGE = """async () => {
  const { verdictsOf } = await import("./static/verdicts.js");
  const now = 100;
  const rank = { role: "actor", rank: "0", node: "n", pid: 1, state: "live", step: 9,
    last_event_seconds: 40, inflight: [], lost: [] };
  const run = { run: "r", places: [rank], scalars: [], steps: [], verdicts: [], incidents: [],
    dropped_ranks: [], standing: { state: "clear", reason: "" } };
  const found = { id: "1", kind: "straggler", state: "found", severity: "warning", role: "actor",
    summary: "rank 0 is slow", sentence: "Rank 0 is slow.", ranks: ["0"], stage: "", cause: "",
    action: "", cost: "", step: null, since_seconds: 60, lost_seconds: null, alerts: [],
    evidence: [] };
  const crash = { ...found, id: "2", kind: "crash", severity: "critical", summary: "OOM" };
  const clear = { kind: "hang", state: "clear", role: "actor", summary: "", evidence: [] };
  const unsure = { ...clear, kind: "straggler", state: "insufficient evidence" };
  const missing = { state: "insufficient evidence", reason: "3 of 8 steps" };
  const agent = { problems: [], nodes: [], faults: [], devices: [], num_segments: 1,
    other_agent_pid: null, num_exporter_errors: 0 };
  CHANGES;
  const lines = verdictsOf({ agent }, run, now, []);
  return lines.map((line) => [line.level, line.title, line.detail]);
}"""


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ("", [("good", "No problem found")]),
        ("run.incidents = [found]", [("warn", "Rank 0 is slow")]),
        ("run.incidents = [{ ...found, severity: 'of another day' }]",
         [("warn", "Rank 0 is slow")]),
        ("run.incidents = [found, crash]", [("bad", "OOM"), ("warn", "Rank 0 is slow")]),
        ("run.verdicts = [clear]", [("good", "No problem found")]),
        ("run.verdicts = [unsure]; run.standing = missing",
         [("quiet", "Not everything can be judged")]),
        ("run.incidents = [found]; run.verdicts = [clear]",
         [("warn", "Rank 0 is slow"), ("quiet", "Otherwise")]),
        ("rank.state = 'exited'", [("note", "The run has ended"), ("good", "No problem found")]),
        ("rank.state = 'died'; run.standing = missing",
         [("note", "Rank 0 died"), ("quiet", "Not everything can be judged")]),
        ("rank.state = 'died'; run.incidents = [crash]", [("bad", "OOM")]),
        (("rank.state = 'died'; run.places.push({ ...rank, rank: '1' });"
         "run.incidents = [crash]"),
         [("bad", "OOM"), ("note", "Rank 1 died")]),
        (("for (let k = 0; k < 12; k++) run.scalars.push("
         "{ key: `s${k}`, step: 9, moments: { count: 1, sum: 'NaN' } })"),
         [*(("note", f"s{k} is NaN at step 9") for k in range(8)), ("note", "And 4 more"),
          ("good", "No problem found")]),
        ("run.num_stale_scalars = 3",
         [("note", "3 scalar values are not in the curves"), ("good", "No problem found")]),
        (("run.dropped_ranks = [{ role: 'worker', num_ranks: 1936, num_records: 9,"
          "num_lost_records: 0 }]; agent.num_dropped_runs = 4"),
         [("note", "1,936 ended processes of worker are not listed"),
          ("note", "4 ended runs are not listed"), ("good", "No problem found")]),
    ],
)  # fmt: skip
def test_the_worst_comes_first(module_page, changes, expected):
    lines = module_page.evaluate(JUDGE.replace("CHANGES", changes))
    assert [(level, title) for level, title, _ in lines] == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ("Object.assign(found, { cause: 'more tokens', step: 7, lost_seconds: 0.5 })",
         "since step 7, 40.0 s · 0.50 s of each step"),
        ("found.cost = 'Every rank waits.'", "for 40.0 s · Every rank waits"),
        ("found.since_seconds = 90", "for 10.0 s"),
        ("run.places.push({ ...rank, role: 'critic' })", "actor · for 40.0 s"),
        ("run.incidents = []; run.verdicts = [unsure]; run.standing = missing",
         "3 of 8 steps"),
        (("run.incidents = []; run.standing = missing;"
         "run.verdicts = [{ ...unsure, state: 'clear' }, { ...unsure, role: 'critic' }]"),
         "3 of 8 steps"),
    ],
)  # fmt: skip
def test_details_say_what_is_known(module_page, changes, expected):
    lines = module_page.evaluate(JUDGE.replace("CHANGES", f"run.incidents = [found]; {changes}"))
    assert lines[0][2] == expected


def test_nothing_lasts_on_in_a_job_that_is_over(module_page):
    over = "run.incidents = [found]; for (const one of run.places) one.state = 'exited'"
    (_, _, detail), *_ = module_page.evaluate(JUDGE.replace("CHANGES", over))
    assert detail.startswith("began at ")
    assert "for " not in detail

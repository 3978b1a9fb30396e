// The banner: one line per verdict; a line with evidence opens.

import { setHidden, setText, reconcile } from "./element.js";
import { IncidentMemory } from "./incident_memory.js";
import { VerdictRow } from "./verdict_row.js";
import { verdictsOf } from "./verdicts.js";

/** Updated in place, so that a ticking clock neither rebuilds the list nor closes open evidence. */
export class VerdictStrip {
  /** `actions` are the callbacks of a line's buttons: {show(target), copy(incident)}. */
  constructor(actions) {
    this.node = document.getElementById("verdicts");
    this.list = document.getElementById("verdict-list");
    this.summary = document.getElementById("verdicts-summary");
    this.actions = actions;
    this.rows = new Map();
    this.memory = new IncidentMemory();
    this.lines = [];
  }

  update(feed, run, alerts) {
    const now = feed.nowSeconds();
    const doubtful = run ? this.memory.doubtful(run, now) : [];
    this.lines =
      feed.state === "lost"
        ? [unreachable(feed.snapshot)]
        : verdictsOf(feed.snapshot, run, now, alerts, doubtful);
    const { lines } = this;
    setHidden(this.node, !lines.length);
    const keys = lines.map((line) => line.key);
    reconcile(this.list, this.rows, keys, () => new VerdictRow(this.actions));
    for (const line of lines) this.rows.get(line.key).update(line);
    const numProblems = lines.filter((line) => ["bad", "warn"].includes(line.level)).length;
    const standing = run && run.standing.state !== "clear" ? run.standing.state : "no problem seen";
    const problems = numProblems === 1 ? "1 problem seen" : `${numProblems} problems seen`;
    setText(this.summary, numProblems ? problems : standing);
  }
}

/** While the agent cannot be reached, its last verdicts do not describe the present. */
function unreachable(snapshot) {
  const at = new Date(snapshot.time_seconds * 1000).toLocaleTimeString("en-GB");
  return {
    key: "unreachable",
    level: "bad",
    title: "The agent cannot be reached",
    detail: `Everything below shows the state at ${at}. The job is not affected. This page reconnects automatically.`,
    evidence: [],
  };
}

// Batches that pass between workers of a job: the verdicts, and the number of batches checked.

import { element, setHidden } from "./element.js";
import { count } from "./format.js";

export class DataCard {
  constructor() {
    this.card = document.getElementById("data");
    this.body = document.getElementById("data-body");
    this.said = "";
  }

  update(run) {
    const lines = dataLines(run);
    setHidden(this.card, !lines.length);
    const said = JSON.stringify(lines);
    if (said === this.said) return;
    this.said = said;
    this.body.replaceChildren(
      ...lines.map(([text, isStrong]) => element("p", isStrong ? "strong" : "quiet", { textContent: text })),
    );
  }
}

/** Pairs [text, isStrong]; none before a batch was compared. Pure. */
export function dataLines(run) {
  const verdicts = run.verdicts.filter(({ kind }) => kind === "data");
  if (!run.ledger && !verdicts.length) return [];
  const lines = verdicts.flatMap(({ state, summary, evidence }) => [
    [summary || `Data: ${state}`, true],
    ...evidence.map((line) => [line, false]),
  ]);
  if (!run.ledger) return lines;
  const { num_judged_steps: judged, num_skipped_steps: skipped, mismatches } = run.ledger;
  lines.push([`${count(judged)} steps compared, ${count(skipped)} could not be.`, false]);
  for (const { boundary, kind, count: times } of mismatches) {
    lines.push([`${boundary}: ${kind}, ${count(times)} times`, false]);
  }
  return lines;
}

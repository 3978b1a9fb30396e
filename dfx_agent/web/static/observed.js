// How the agent observes the job: which hooks of the guest work, and what the guest costs.

import { element, setHidden } from "./element.js";
import { finePercent, rankList } from "./format.js";

const PATCH = "patch/";
const GIVEN_UP = "guest/given_up";
// the last entry is level 4 of that gauge; each level includes the entries before it
const REDUCED = [
  "FLOPs in every 16th step",
  "values and batches in every 16th step",
  "no stages within a step and no FLOPs",
  "no collectives",
];

export class ObservedLine {
  constructor() {
    this.node = document.getElementById("observed");
    this.said = "";
  }

  update(run) {
    const parts = [...hookParts(run.hooks), ...overheadParts(run), ...givenUpParts(run.hooks)];
    setHidden(this.node, !parts.length);
    const said = JSON.stringify(parts);
    if (said === this.said) return;
    this.said = said;
    const nodes = parts.flatMap(([text, isBad], index) => [
      index ? " · " : "",
      element("span", isBad ? "warn" : "", { textContent: text }),
    ]);
    this.node.replaceChildren("Observation: ", ...nodes);
  }
}

/** Pairs [text, isBad]. */
function hookParts(groups) {
  const hooks = new Map();
  for (const { gauges, ranks } of groups) {
    for (const [name, value] of Object.entries(gauges)) {
      if (!name.startsWith(PATCH)) continue;
      const hook = name.slice(PATCH.length);
      hooks.set(hook, [...(hooks.get(hook) ?? []), { ranks, value: Number(value) }]);
    }
  }
  const names = [...hooks.keys()].sort();
  const active = names.filter((name) => hooks.get(name).some(({ value }) => value > 0));
  const absent = names.filter((name) => hooks.get(name).every(({ value }) => value === 0));
  const parts = active.length ? [[`hooks ${active.join(", ")}`, false]] : [];
  if (absent.length) parts.push([`not used: ${absent.join(", ")}`, false]);
  for (const name of names) {
    const failed = hooks.get(name).filter(({ value }) => value < 0);
    if (failed.length) {
      parts.push([`${name} failed on ${rankList(failed.flatMap(({ ranks }) => ranks))}`, true]);
    }
  }
  return parts;
}

function overheadParts({ overhead_ratio: ratio, num_overheads: numOverheads }) {
  if (ratio === null || !Number.isFinite(Number(ratio))) return [];
  const most = numOverheads > 1 ? `at most ${finePercent(ratio)}` : finePercent(ratio);
  return [[`the guest costs ${most} of the time, measured in place`, false]];
}

function givenUpParts(groups) {
  const poorer = groups.filter(({ gauges }) => Number(gauges[GIVEN_UP] ?? 0) > 0);
  if (!poorer.length) return [];
  const level = Math.max(...poorer.map(({ gauges }) => Number(gauges[GIVEN_UP])));
  const what = REDUCED.slice(0, level).join(", ");
  const who = rankList(poorer.flatMap(({ ranks }) => ranks));
  return [[`recorded less on ${who}, because the guest exceeds its overhead budget: ${what}`, true]];
}

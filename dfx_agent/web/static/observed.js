// How the job is observed: which hooks of the guest work, and what the guest costs.

import { element, setHidden } from "./element.js";
import { finePercent, rankList } from "./format.js";

const PATCH = "patch/";
const OVERHEAD = "guest/overhead_ratio";
const GIVEN_UP = "guest/given_up";

export class ObservedLine {
  constructor() {
    this.node = document.getElementById("observed");
    this.said = "";
  }

  update(run) {
    const parts = [...hookParts(run.ranks), ...overheadParts(run.ranks), ...givenUpParts(run.ranks)];
    setHidden(this.node, !parts.length);
    const said = JSON.stringify(parts);
    if (said === this.said) return;
    this.said = said;
    const nodes = parts.flatMap(([text, isBad], index) => [
      index ? " · " : "",
      element("span", isBad ? "warn" : "", { textContent: text }),
    ]);
    this.node.replaceChildren("Observed how: ", ...nodes);
  }
}

/** Pairs [text, isBad]. */
function hookParts(ranks) {
  const hooks = new Map();
  for (const rank of ranks) {
    for (const [name, value] of Object.entries(rank.gauges)) {
      if (!name.startsWith(PATCH)) continue;
      const hook = name.slice(PATCH.length);
      hooks.set(hook, [...(hooks.get(hook) ?? []), { rank: rank.rank, value: Number(value) }]);
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
      parts.push([`${name} failed on ${rankList(failed.map(({ rank }) => rank))}`, true]);
    }
  }
  return parts;
}

function overheadParts(ranks) {
  const ratios = ranks
    .map((rank) => Number(rank.gauges[OVERHEAD] ?? Number.NaN))
    .filter(Number.isFinite);
  if (!ratios.length) return [];
  const most = ratios.length > 1 ? `at most ${finePercent(Math.max(...ratios))}` : finePercent(ratios[0]);
  return [[`the guest costs ${most} of a step, measured by itself`, false]];
}

function givenUpParts(ranks) {
  const poorer = ranks.filter((rank) => Number(rank.gauges[GIVEN_UP] ?? 0) > 0);
  if (!poorer.length) return [];
  const all = poorer.some((rank) => Number(rank.gauges[GIVEN_UP]) > 1);
  const what = all ? "stages within a step and collectives" : "stages within a step";
  const who = rankList(poorer.map(({ rank }) => rank));
  return [[`${what} given up on ${who}: above --max-overhead`, true]];
}

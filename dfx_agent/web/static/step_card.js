// One closed step of the run, also an old one: the split of its time for each rank.

import { element, reconcile, setHidden, setText } from "./element.js";
import { getJson } from "./feed.js";
import { count, duration } from "./format.js";
import { SplitBar, partsOf, waitSeconds } from "./split.js";
import { hideTooltip, partRows, showTooltip } from "./tooltip.js";

const MOST_RANKS = 64;

export class StepCard {
  /** Calls `onStep(step)` when the reader asks for another step, `onShow(begin, end)` for the timeline. */
  constructor(onStep, onShow) {
    this.card = document.getElementById("step-card");
    this.body = document.getElementById("step-rows");
    this.note = document.getElementById("step-note");
    this.scale = document.getElementById("step-scale");
    this.number = /** @type {HTMLInputElement} */ (document.getElementById("step-number"));
    this.lines = new Map();
    this.found = [];
    this.asked = "";
    const go = (step) => step >= 0 && onStep(step);
    this.number.addEventListener("change", () => go(Number(this.number.value)));
    document.getElementById("step-before").addEventListener("click", () => go(Number(this.number.value) - 1));
    document.getElementById("step-after").addEventListener("click", () => go(Number(this.number.value) + 1));
    document.getElementById("step-show").addEventListener("click", () => {
      const times = rangeOf(this.found);
      if (times) onShow(times.begin, times.end);
    });
  }

  /** `step` is the step of the address as text; "" for the latest closed one. */
  update(run, step, isInView) {
    const latest = run.steps.at(-1);
    setHidden(this.card, !latest);
    if (!latest || !isInView) return;
    const number = step === "" ? latest.step : Number(step);
    const asked = JSON.stringify([run.run, run.attempt, number]);
    if (asked === this.asked) return;
    this.asked = asked;
    if (document.activeElement !== this.number || step !== "") this.number.value = String(number);
    this.fetch(run.run, number, asked);
  }

  async fetch(run, number, asked) {
    try {
      const rows = await getJson(`api/v1/runs/${encodeURIComponent(run)}/steps?step=${number}`);
      if (asked === this.asked) this.show(rows, number);
    } catch {
      this.asked = ""; // ask again with the next view
    }
  }

  show(rows, number) {
    this.found = rows;
    const cells = rows.flatMap((row) => row.cells.map((cell) => ({ role: row.role, ...cell })));
    cells.sort((one, other) => workOf(other) - workOf(one));
    const shown = cells.slice(0, MOST_RANKS);
    setText(this.note, noteOf(rows, number, cells.length));
    const scale = Math.max(...shown.map((cell) => cell.split.wall_seconds), 0) || 1;
    setText(this.scale, `Time of the step, full width ${duration(scale)}`);
    const keys = shown.map((cell) => `${cell.role}/${cell.rank}`);
    reconcile(this.body, this.lines, keys, () => new StepLine());
    const showsRole = rows.length > 1;
    shown.forEach((cell, index) => this.lines.get(keys[index]).update(cell, scale, showsRole));
  }

  repaint() {
    for (const line of this.lines.values()) line.bar.repaint();
  }
}

class StepLine {
  constructor() {
    this.name = element("th", "c-rank", { scope: "row" });
    this.bar = new SplitBar("last");
    this.cells = ["active", "wait", "idle", "tokens"].map(() => element("td", "num"));
    this.node = element("tr", "", {}, this.name, element("td", "c-split", {}, this.bar.node), ...this.cells);
    this.bar.node.addEventListener("mousemove", (event) => this.explain(event));
    this.bar.node.addEventListener("mouseleave", hideTooltip);
  }

  update(cell, scale, showsRole) {
    this.cell = cell;
    const { split } = cell;
    setText(this.name, showsRole ? `${cell.role} ${cell.rank}` : cell.rank);
    this.node.dataset.rank = `${cell.role}/${cell.rank}`;
    this.bar.update(split, scale);
    const tokens = tokensOf(cell);
    const seconds = [split.active_seconds, waitSeconds(split), split.idle_seconds].map(duration);
    [...seconds, tokens === null ? "–" : count(tokens)].forEach((text, index) => setText(this.cells[index], text));
  }

  explain(event) {
    const { rank, split } = this.cell;
    const rows = partRows(partsOf(split), split.wall_seconds);
    showTooltip(event.clientX, event.clientY, `Rank ${rank}`, duration(split.wall_seconds), rows);
  }
}

function noteOf(rows, number, numRanks) {
  if (!rows.length) return `step ${number} is not stored: it has not closed, or is too old`;
  const { begin, end } = rangeOf(rows);
  const missing = rows.flatMap((row) => row.missing_ranks);
  return [
    `began ${new Date(begin * 1000).toLocaleTimeString("en-GB")}`,
    `took ${duration(end - begin)}`,
    "most work first",
    numRanks > MOST_RANKS ? `${MOST_RANKS} of ${count(numRanks)} ranks` : "",
    missing.length ? `without ${missing.join(", ")}` : "",
  ].filter(Boolean).join(" · ");
}

/** {begin, end} over the roles; null without a step. */
function rangeOf(rows) {
  if (!rows.length) return null;
  const begin = Math.min(...rows.map((row) => row.begin_seconds));
  return { begin, end: Math.max(...rows.map((row) => row.end_seconds)) };
}

function workOf({ split }) {
  return split.active_seconds;
}

/** Tokens of a rank; a total that is reported replaces the sum of its kinds. Pure. */
export function tokensOf({ tokens }) {
  const numbers = Object.values(tokens);
  return tokens.total ?? (numbers.length ? numbers.reduce((sum, number) => sum + number, 0) : null);
}

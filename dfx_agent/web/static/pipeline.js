// The breakdown of a step, or the bottleneck of a pipeline and its causes; waits by role; weight sync
// by part.

import { element, reconcile, setHidden, setText } from "./element.js";
import { count, duration, percent, scalar, toNumber } from "./format.js";
import { meanOf } from "./histories.js";
import { SplitBar, partsOf } from "./split.js";

const STAGE_PREFIX = "weight_sync_";
const SYNC_METRIC = "dfx_weight_update_seconds";
const PARTS = ["pause", "gather", "transfer", "load", "resume"];
const LEVELS = { found: "warn", clear: "note", "insufficient evidence": "quiet" };
const WAITS_SHOWN = 3;
const LEAST_SHARE = 0.005;
const IN_STEPS = new Set(["seconds", "groups"]);
/**
 * Figures about queues and the age of samples: label, metric, required labels, formatter.
 * @type {[string, string, Record<string, string>, (value: number) => string][]}
 */
const FIGURES = [
  ["Policy lag", "dfx_policy_lag_versions", { stat: "mean", variant: "", scope: "", ref: "" }, scalar],
  ["Lag of the oldest tokens", "dfx_policy_lag_worst_versions", { stat: "mean" }, scalar],
  ["Largest lag", "dfx_policy_lag_worst_versions", { stat: "max" }, scalar],
  ["Partial rollouts", "dfx_partial_rollout_ratio", {}, percent],
  ["Stale", "dfx_stale_ratio", {}, percent],
  ["Aborted", "dfx_aborted_ratio", { stat: "", env: "", subset: "", agent: "" }, percent],
];

export class PipelinePanel {
  constructor() {
    this.node = document.getElementById("pipeline");
    this.note = document.getElementById("pipeline-note");
    this.bottleneck = new BottleneckView();
    this.waits = new Rows("pipeline-waits", "pipeline-wait-rows", () => new WaitLine());
    this.sync = new Rows("pipeline-sync", "pipeline-sync-rows", () => new SyncLine());
    this.figures = new Rows("pipeline-figures", "pipeline-figures", () => new Figure());
  }

  update(run) {
    const sync = weightSync(run);
    const figures = figuresOf(run);
    const isShown = isPipeline(run) || sync.length > 0 || figures.length > 0;
    setHidden(this.node, !isShown);
    if (!isShown) return;
    setText(this.note, windowText(run.bottleneck));
    this.bottleneck.update(run.bottleneck);
    this.waits.update(waitsOf(run));
    this.sync.update(sync);
    this.figures.update(figures);
  }

  repaint() {
    for (const line of this.waits.rows.values()) line.bar.repaint();
  }
}

/** Whether the card is shown: engines, several roles with a bottleneck, or a step breakdown. */
function isPipeline(run) {
  const roles = new Set(run.places.map((rank) => rank.role));
  const isKnown = Boolean(run.bottleneck) && (roles.size > 1 || isBreakdown(run.bottleneck));
  return Boolean(run.engines) || isKnown;
}

/** Whether the verdict is a breakdown of a step: the roles of the job take turns. */
export function isBreakdown({ bound_by: bound, parts, chain }) {
  return !bound && parts.length > 0 && chain.length > 0;
}

/** A list or table body, hidden while it is empty; rows are {key, ...}. */
class Rows {
  constructor(id, bodyId, make) {
    this.node = document.getElementById(id);
    this.body = document.getElementById(bodyId);
    this.make = make;
    this.rows = new Map();
  }

  update(rows) {
    setHidden(this.node, !rows.length);
    reconcile(this.body, this.rows, rows.map((row) => row.key), this.make);
    for (const row of rows) this.rows.get(row.key).update(row);
  }
}

class BottleneckView {
  constructor() {
    this.node = document.getElementById("bottleneck");
    this.title = document.getElementById("bottleneck-title");
    this.cost = document.getElementById("bottleneck-cost");
    this.chain = new Rows("bottleneck-chain", "bottleneck-chain", () => new Link());
    this.causes = new Rows("bottleneck-causes", "bottleneck-cause-rows", () => new CauseLine());
    this.balance = document.getElementById("bottleneck-balance");
  }

  update(bottleneck) {
    setHidden(this.node, !bottleneck);
    if (!bottleneck) return;
    const isOfStep = isBreakdown(bottleneck);
    this.node.dataset.level = LEVELS[bottleneck.state] ?? "quiet";
    setText(this.title, titleOf(bottleneck));
    setText(this.cost, bottleneck.state === "found" && !isOfStep ? costOf(bottleneck) : bottleneck.summary);
    this.chain.node.classList.toggle("plain", isOfStep);
    const sentences = isOfStep ? bottleneck.chain.slice(1) : bottleneck.chain;
    this.chain.update(sentences.map((text, index) => ({ key: index, text })));
    this.causes.update(bottleneck.causes.map((cause, index) => ({ key: index, cause })));
    setText(this.balance, bottleneck.balance);
    setHidden(this.balance, !bottleneck.balance);
  }
}

/** The chain of causes: the symptom first, each line because of the next. */
class Link {
  constructor() {
    this.node = element("li");
  }

  update({ text }) {
    setText(this.node, text);
  }
}

class CauseLine {
  constructor() {
    this.component = element("th", "", { scope: "row" });
    this.amount = element("td", "c-amount num");
    this.since = element("td", "c-since num");
    this.node = element("tr", "", {}, this.component, this.amount, this.since);
  }

  update({ cause }) {
    setText(this.component, cause.component);
    this.node.title = cause.sentence;
    setText(this.amount, amountText(cause));
    setText(this.since, cause.since_step === null ? "–" : `step ${cause.since_step}`);
  }
}

/** One role: a bar of its mean time, and its largest waits as text. */
class WaitLine {
  constructor() {
    this.name = element("th", "c-role", { scope: "row" });
    this.bar = new SplitBar("last");
    this.words = element("td", "c-waits");
    this.node = element("tr", "", {}, this.name, element("td", "c-split", {}, this.bar.node), this.words);
  }

  update({ role, parts, seconds, words, title }) {
    setText(this.name, role);
    this.node.title = title;
    this.bar.show(parts, seconds);
    setText(this.words, words);
  }
}

class SyncLine {
  constructor() {
    this.name = element("th", "c-role", { scope: "row" });
    this.cells = [...PARTS, "bytes"].map((part) => element("td", `c-${part} num`));
    this.node = element("tr", "", {}, this.name, ...this.cells);
  }

  update({ name, parts, bytes: size }) {
    setText(this.name, name);
    PARTS.forEach((part, index) => setText(this.cells[index], duration(toNumber(parts[part]))));
    setText(this.cells.at(-1), size === null ? "–" : `${scalar(size / 2 ** 20)} MiB`);
  }
}

class Figure {
  constructor() {
    this.label = element("dt");
    this.value = element("dd");
    this.node = element("div", "", {}, this.label, this.value);
  }

  update({ key, text }) {
    setText(this.label, key);
    setText(this.value, text);
  }
}

export function titleOf(bottleneck) {
  const { state, bound_by: bound } = bottleneck;
  if (isBreakdown(bottleneck)) return "Where a step goes";
  if (state === "clear") return "Balanced";
  if (state !== "found" || !bound) return "Not known yet";
  return bound === "stalled" ? "Stalled" : `Bound by ${bound}`;
}

export function costOf({ cost_seconds: cost, cost_ratio: share, step_seconds: step }) {
  if (cost === null || step === null) return "";
  return `${duration(cost)} of a step of ${duration(step)} (${percent(share)})`;
}

function windowText(bottleneck) {
  if (!bottleneck || bottleneck.first_step === null) return "";
  return `steps ${bottleneck.first_step} to ${bottleneck.last_step} of ${bottleneck.role}`;
}

/** "2.61 s a step", "9 requests", "3.1 times"; "" if the cost is not known. */
export function amountText({ amount, unit }) {
  if (amount === null) return "–";
  const [base, ...rest] = unit.split(" ");
  const number = base === "seconds" ? duration(amount) : `${scalar(amount)} ${base}`;
  return [number, IN_STEPS.has(unit) ? "a step" : rest.join(" ")].filter(Boolean).join(" ");
}

/** Rows by role: the mean of its ranks' last steps, or of their total time if it counts no steps. */
export function waitsOf(run) {
  return run.roles.map(({ role, num_ranks: numRanks, is_of_steps: isOfSteps, mean }) => {
    const parts = partsOf(mean);
    const seconds = mean.wall_seconds;
    const when = isOfSteps ? "the last step" : "all its time";
    return {
      key: role, role, parts, seconds, title: `mean of ${count(numRanks)} in ${when}`,
      words: waitWords(parts, seconds),
    };
  });
}

function waitWords(parts, seconds) {
  const waits = parts.filter((part) => part.kind === "wait" && part.seconds >= LEAST_SHARE * seconds);
  waits.sort((one, other) => other.seconds - one.seconds);
  const shown = waits.slice(0, WAITS_SHOWN).map((part) => `${part.name} ${percent(part.seconds / seconds)}`);
  return shown.length ? shown.join(" · ") : "no waits";
}

/** Rows {key, name, parts, bytes}: the sender's stages or the reported totals, then each receiver. */
export function weightSync(run) {
  const rows = new Map();
  const row = (receiver) => {
    const name = receiver ? `to replica ${receiver}` : "whole";
    if (!rows.has(receiver)) rows.set(receiver, { key: receiver, name, parts: {}, bytes: null });
    return rows.get(receiver);
  };
  for (const reported of run.scalars) {
    const { part, receiver = "" } = reported.labels;
    if (reported.metric === SYNC_METRIC) row(receiver).parts[part] = meanOf(reported);
    if (reported.metric === "dfx_weight_sync_bytes") row(receiver).bytes = meanOf(reported);
  }
  for (const rank of run.ranks.filter(({ last }) => last)) {
    for (const [part, seconds] of Object.entries(partSeconds(rank.last))) {
      row("").parts[part] = seconds;
    }
  }
  const byName = (one, other) => one.key.localeCompare(other.key, "en", { numeric: true });
  return [...rows.values()].filter((line) => Object.keys(line.parts).length).sort(byName);
}

/** Seconds of each part, as in the catalogue: a wait inside a part belongs to the part. */
function partSeconds(split) {
  const found = {};
  for (const byStage of [split.stage_seconds, ...Object.values(split.wait_seconds)]) {
    for (const [stage, seconds] of Object.entries(byStage)) {
      if (!stage.startsWith(STAGE_PREFIX)) continue;
      const part = stage.slice(STAGE_PREFIX.length);
      found[part] = (found[part] ?? 0) + seconds;
    }
  }
  return found;
}

/** Queues and the age of samples, as far as the run reports them. */
export function figuresOf(run) {
  const found = [];
  for (const [key, metric, labels, text] of FIGURES) {
    const reported = run.scalars.find(
      (row) =>
        row.metric === metric &&
        Object.entries(labels).every(([name, value]) => (row.labels[name] ?? "") === value),
    );
    const value = reported ? meanOf(reported) : null;
    if (value !== null) found.push({ key, text: text(value) });
  }
  const depths = Object.entries(run.queue_depth).map(([queue, depth]) => ({
    key: `Queue ${queue}`,
    text: count(depth),
  }));
  return [...depths, ...found];
}

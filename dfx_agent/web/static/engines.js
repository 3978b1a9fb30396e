// Rollout engines: one row per replica, because a mean would hide a slow replica.

import { element, reconcile, setHidden, setText } from "./element.js";
import { count, duration, percent, toNumber } from "./format.js";

const FIRST_TOKEN = "time_to_first_token_seconds";
/** @type {[string, string, (value: number) => string][]} */
const SPREADS = [
  ["running", "running_requests", count],
  ["waiting", "waiting_requests", count],
  ["kv", "kv_cache_usage_ratio", percent],
  ["busy", "busy_ratio", percent],
  ["first", `${FIRST_TOKEN}_p50`, duration],
  ["tail", `${FIRST_TOKEN}_p99`, duration],
  ["speed", "tokens_per_second", count],
];

export class EnginePanel {
  constructor() {
    this.node = document.getElementById("engines");
    this.body = document.getElementById("engine-rows");
    this.notes = document.getElementById("engine-notes");
    this.rows = new Map();
    this.noteRows = new Map();
    this.spread = new SpreadLine();
  }

  update(run) {
    const pool = run.engines;
    setHidden(this.node, !pool);
    if (!pool) return;
    const keys = pool.replicas.map((engine) => `${engine.replica}/${engine.dp_rank}`);
    reconcile(this.body, this.rows, keys, () => new EngineLine());
    pool.replicas.forEach((engine, index) => this.rows.get(keys[index]).update(engine));
    this.spread.update(pool.spreads);
    setHidden(this.spread.node, pool.replicas.length < 2);
    this.body.append(this.spread.node);
    const notes = pool.notes.filter((note) => note.kind !== "not up");
    const sentences = notes.map((note) => note.sentence);
    reconcile(this.notes, this.noteRows, sentences, (text) => ({ node: element("li", "", {}, text) }));
  }
}

class EngineLine {
  constructor() {
    this.name = element("th", "c-rank", { scope: "row" });
    this.dot = element("i", "dot");
    this.word = element("span");
    this.state = element("td", "c-state", {}, this.dot, this.word);
    this.cells = cellsByName();
    this.node = element("tr", "", {}, this.name, this.state, ...Object.values(this.cells));
  }

  update(engine) {
    const rank = engine.dp_rank ? ` · ${engine.dp_rank}` : "";
    setText(this.name, `${engine.replica}${rank}`);
    this.name.title = [engine.url, engine.worker, engine.model].filter(Boolean).join("\n");
    this.dot.dataset.state = engine.state === "up" ? "live" : "died";
    setText(this.word, stateWords(engine));
    this.state.title = engine.reason;
    this.node.classList.toggle("gone", engine.state !== "up");
    for (const [name, text] of Object.entries(figures(engine))) setText(this.cells[name], text);
  }
}

/** Smallest, median and largest over the replicas that are up. */
class SpreadLine {
  constructor() {
    this.cells = cellsByName();
    const name = element("th", "c-rank quiet", { scope: "row" }, "all");
    const words = element("td", "c-state quiet", {}, "min · median · max");
    this.node = element("tr", "spread", {}, name, words, ...Object.values(this.cells));
  }

  update(spreads) {
    for (const [name, quantity, text] of SPREADS) {
      const spread = spreads[quantity];
      const parts = spread ? [spread.min, spread.median, spread.max].map((value) => text(toNumber(value))) : [];
      setText(this.cells[name], spread ? parts.join(" · ") : "–");
    }
  }
}

function cellsByName() {
  return Object.fromEntries(SPREADS.map(([name]) => [name, element("td", `c-${name} num`)]));
}

function stateWords(engine) {
  if (engine.state !== "up") return engine.state;
  const mode = engine.sleep_state && engine.sleep_state !== "awake" ? "asleep" : "up";
  return engine.pd ? `${mode}, ${engine.pd}` : mode;
}

/** Values that are not reported are "–". Values of an engine that is down are old and not shown. */
function figures(engine) {
  const isUp = engine.state === "up";
  const shown = (value, text) => {
    const number = isUp ? toNumber(value) : null;
    return number === null ? "–" : text(number);
  };
  const first = engine.latencies[FIRST_TOKEN];
  const speed = engine.rates.generation_tokens ?? engine.gauges.reported_tokens_per_second;
  return {
    running: shown(engine.gauges.running_requests, count),
    waiting: shown(engine.gauges.waiting_requests, count),
    kv: shown(engine.gauges.kv_cache_usage_ratio, percent),
    busy: shown(engine.busy_ratio, percent),
    first: shown(first?.p50, duration),
    tail: shown(first?.p99, duration),
    speed: shown(speed, count),
  };
}

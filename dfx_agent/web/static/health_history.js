// Training health over steps, from the agent's history.

import { getJson } from "./feed.js";
import { toNumber } from "./format.js";

const NUM_STEPS = 120;
const MIN_FETCH_MS = 1000;
const RETRY_MS = 3000;

/** `rows` is the response of /signals; `series(name)` is one signal in it. */
export class HealthHistory {
  constructor(onChange) {
    this.onChange = onChange;
    this.reset(null);
  }

  reset(run) {
    this.run = run;
    this.rows = { steps: [], is_latched: [], signals: [], symptoms: [] };
    this.known = new Map();
    this.isFetching = false;
    this.askedRow = null;
    this.nextMs = -Infinity;
  }

  series(name) {
    return this.known.get(name);
  }

  /** Asks again if the agent has judged a step since the last request. */
  update(run) {
    if (run.run !== this.run?.run) this.reset(run);
    this.run = run;
    if (this.isFetching || performance.now() < this.nextMs) return;
    if (run.signals.row !== this.askedRow) this.fetch(run);
  }

  async fetch(run) {
    this.isFetching = true;
    const name = encodeURIComponent(run.run);
    try {
      const rows = await getJson(`api/v1/runs/${name}/signals?steps=${NUM_STEPS}`);
      if (run.run !== this.run.run) return;
      this.askedRow = run.signals.row;
      this.nextMs = performance.now() + MIN_FETCH_MS;
      this.store(rows);
    } catch {
      this.nextMs = performance.now() + RETRY_MS;
      return;
    } finally {
      this.isFetching = false;
    }
    this.onChange();
  }

  store(rows) {
    this.rows = rows;
    this.known = new Map(
      rows.signals.map((row) => [row.signal, { ...row, values: row.values.map(toNumber) }]),
    );
  }
}

// Every scalar over steps: fetched once per key, then extended from the stream.

import { getJson } from "./feed.js";
import { toNumber } from "./format.js";

const MAX_KEYS_PER_REQUEST = 40;
const MAX_POINTS = 5000;
const RETRY_MS = 3000;

/** `get(key)` returns {metric, unit, steps, values, version}; `version` grows with each change. */
export class Histories {
  /** Calls `onChange()` when a history has arrived. */
  constructor(onChange) {
    this.onChange = onChange;
    this.reset(null);
  }

  reset(run) {
    this.run = run;
    this.series = new Map();
    this.stale = new Set();
    this.isFetching = false;
    this.retryMs = -Infinity;
  }

  get(key) {
    return this.series.get(key);
  }

  /** Adds the latest values; requests the history of keys that are new or have a gap. */
  update(run) {
    if (run.run !== this.run?.run || run.attempt !== this.run?.attempt) this.reset(run);
    for (const row of run.scalars) {
      const series = this.series.get(row.key);
      if (series && (append(series, row) || series.askedAtStep === row.step)) continue;
      // At most one request per step: the agent may store fewer points than the page wants.
      if (series) series.askedAtStep = row.step;
      this.stale.add(row.key);
    }
    this.fetch();
  }

  /** After a broken connection everything may have gaps. */
  forget() {
    for (const key of this.series.keys()) this.stale.add(key);
  }

  async fetch() {
    if (this.isFetching || !this.stale.size || performance.now() < this.retryMs) return;
    this.isFetching = true;
    const { run } = this;
    const keys = [...this.stale].slice(0, MAX_KEYS_PER_REQUEST);
    const query = keys.map((key) => `key=${encodeURIComponent(key)}`).join("&");
    try {
      const rows = await getJson(`api/v1/runs/${encodeURIComponent(run.run)}/scalars?${query}`);
      if (run.run !== this.run.run) return;
      this.store(keys, new Map(rows.map((row) => [row.key, row])));
    } catch {
      this.retryMs = performance.now() + RETRY_MS;
      return;
    } finally {
      this.isFetching = false;
    }
    this.onChange();
  }

  store(keys, rows) {
    for (const key of keys) {
      const row = rows.get(key) ?? { metric: null, unit: "", steps: [], values: [] };
      const known = this.series.get(key) ?? { version: 0, askedAtStep: null };
      const { metric, unit, steps } = row;
      const values = row.values.map(toNumber);
      this.series.set(key, { ...known, metric, unit, steps, values, version: known.version + 1 });
      this.stale.delete(key);
    }
  }
}

/** The mean over ranks, or null when nothing was reported. */
export function meanOf(row) {
  return row.moments.count > 0 ? toNumber(row.moments.sum) / row.moments.count : null;
}

/** False if steps are missing, so that the page must fetch the series again. */
function append(series, row) {
  const value = meanOf(row);
  if (row.step === null || value === null) return true;
  const { steps, values } = series;
  const last = steps.at(-1);
  if (last === row.step) {
    if (Object.is(values.at(-1), value)) return true;
    values[values.length - 1] = value;
  } else if (last !== undefined && row.step < last) {
    return true;
  } else if (last !== undefined && row.step > last + usualGap(steps)) {
    return false;
  } else {
    steps.push(row.step);
    values.push(value);
    if (steps.length > MAX_POINTS) {
      steps.shift();
      values.shift();
    }
  }
  series.version += 1;
  return true;
}

/** The usual distance of two steps: some frameworks report only every n-th step. */
function usualGap(steps) {
  return steps.length > 1 ? steps.at(-1) - steps.at(-2) : 1;
}

// Values by rank and step: fetched a few steps at a time and cached.

import { getJson } from "./feed.js";

export const MAX_STEPS = 500;
const MIN_FETCH_MS = 1000;
const RETRY_MS = 3000;

/** {ranks, steps, values}: `values` has one row per step and one column per rank. */
export class HeatmapData {
  constructor(onChange) {
    this.onChange = onChange;
    this.reset("", "");
  }

  reset(run, measure) {
    this.run = run;
    this.measure = measure;
    this.role = "";
    this.ranks = [];
    this.steps = [];
    this.values = [];
    this.isFetching = false;
    this.nextMs = -Infinity;
  }

  /** Asks for the steps that closed since the last request. */
  update(run, measure) {
    if (run.run !== this.run || measure !== this.measure) this.reset(run.run, measure);
    if (this.isFetching || performance.now() < this.nextMs || !this.hasNews(run)) return;
    this.fetch();
  }

  hasNews(run) {
    const latest = this.steps.at(-1) ?? -1;
    return run.steps.some((row) => (!this.role || row.role === this.role) && row.step > latest);
  }

  async fetch() {
    this.isFetching = true;
    const { run, measure } = this;
    const query = new URLSearchParams({ measure, role: this.role, after: String(this.steps.at(-1) ?? -1) });
    try {
      const found = await getJson(`api/v1/runs/${encodeURIComponent(run)}/heatmap?${query}`);
      if (run !== this.run || measure !== this.measure) return;
      this.nextMs = performance.now() + MIN_FETCH_MS;
      this.store(found);
    } catch {
      this.nextMs = performance.now() + RETRY_MS;
      return;
    } finally {
      this.isFetching = false;
    }
    this.onChange();
  }

  /** Uses the ranks of the latest response: ranks can join and leave. */
  store({ role, ranks, steps, values }) {
    if (ranks.join() !== this.ranks.join()) {
      const places = ranks.map((rank) => this.ranks.indexOf(rank));
      this.values = this.values.map((row) => places.map((place) => row[place] ?? null));
    }
    this.role = role;
    this.ranks = ranks;
    this.steps = [...this.steps, ...steps].slice(-MAX_STEPS);
    this.values = [...this.values, ...values].slice(-MAX_STEPS);
  }
}

/** Indices of the ranks in rank order, or with the largest mean over the steps first. Pure. */
export function orderOf(values, numRanks, isByValue) {
  const order = Array.from({ length: numRanks }, (_, index) => index);
  if (!isByValue) return order;
  const means = order.map((rank) => meanOf(values.map((row) => row[rank])));
  return order.sort((one, other) => means[other] - means[one]);
}

function meanOf(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : -Infinity;
}

/**
 * The shade of each value of a step. Work and tokens: -1 to 1 around the median of the step, full at
 * 1.5 times the median. Waits: 0 to 1, full at the largest shown value. null stays null. Pure.
 */
export function shadesOf(row, isTwoSided, most) {
  if (!isTwoSided) return row.map((value) => (value === null ? null : most > 0 ? value / most : 0));
  const known = row.filter((value) => value !== null).sort((one, other) => one - other);
  const middle = known[known.length >> 1];
  if (!middle) return row.map((value) => (value === null ? null : 0));
  return row.map((value) => (value === null ? null : Math.max(-1, Math.min(1, 2 * (value / middle - 1)))));
}

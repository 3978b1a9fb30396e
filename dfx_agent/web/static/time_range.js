// The shown time range of the timeline. It follows now until the reader pauses, pans or zooms.

import { getJson } from "./feed.js";

const MIN_SECONDS = 0.01;

/** The range after zooming by `factor` (2: twice as much time) around `at`. Pure. */
export function zoomed({ begin, end }, factor, at, limits) {
  const most = limits.end - limits.begin;
  const seconds = Math.min(Math.max((end - begin) * factor, MIN_SECONDS), most);
  const share = (at - begin) / (end - begin);
  return within({ begin: at - share * seconds, end: at + (1 - share) * seconds }, limits);
}

/** The range moved by these seconds. Pure. */
export function panned({ begin, end }, seconds, limits) {
  return within({ begin: begin + seconds, end: end + seconds }, limits);
}

/** Moves a range into the limits; its length does not change. */
function within({ begin, end }, limits) {
  const shift = Math.max(limits.begin - begin, 0) + Math.min(limits.end - end, 0);
  return { begin: begin + shift, end: end + shift };
}

/** {begin, end} of the closed steps of a run, for the small map under the timeline. */
export class StepTimes {
  constructor() {
    this.steps = new Map();
    this.run = "";
  }

  /** Adds the steps of a view. Those of a new run begin with all steps that the agent has stored. */
  update(run, rows) {
    if (run !== this.run) this.fetch(run);
    this.add(rows);
  }

  async fetch(run) {
    this.run = run;
    this.steps.clear();
    try {
      const rows = await getJson(`api/v1/runs/${encodeURIComponent(run)}/steps`);
      if (run === this.run) this.add(rows);
    } catch {
      // without the earlier steps the map begins with the steps of the view
    }
  }

  add(rows) {
    for (const row of rows) {
      const known = this.steps.get(row.step);
      const begin = Math.min(known?.begin ?? Infinity, row.begin_seconds);
      this.steps.set(row.step, { begin, end: Math.max(known?.end ?? -Infinity, row.end_seconds) });
    }
  }

  /** From the first known step to `end`. */
  limits(end) {
    const begins = [...this.steps.values()].map((step) => step.begin);
    return { begin: begins.length ? Math.min(...begins) : end - 1, end };
  }
}

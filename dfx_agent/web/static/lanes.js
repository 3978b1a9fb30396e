// The latest steps of the ranks with all details, from the agent: one lane of pieces per rank.

import { getPages } from "./feed.js";

export const NUM_STEPS = 8;
const NUM_FRESH_STEPS = 2;
const MOST_STEPS = 64; // as many as an agent retains with all details
const FULL_FETCH_MS = 15000;
const MIN_FETCH_MS = 200;
const FETCHES_PER_WINDOW = 100;
const GAP_SECONDS = 0.01;
const SETTLED_SECONDS = 5; // a piece that ended longer ago is complete and does not change

/** Lanes {key, role, rank, rows}; rows are from the responses of /timeline, oldest first. */
export class Lanes {
  constructor(onChange) {
    this.onChange = onChange;
    this.ranks = new Map();
    this.lanes = new Map();
    this.reset(null);
  }

  reset(run) {
    this.run = run;
    this.lanes.clear();
    this.fetchedMs = this.fullFetchMs = -Infinity;
    this.isFetching = this.hasHole = false;
    this.reachSeconds = Infinity; // begin of the earliest pieces that were asked for
    this.asked = new Set(); // the ranks of the last full response, with or without rows
  }

  /**
   * Fetches new pieces; `shownSeconds` is the shown time range. Returns true if the run changed.
   * `isOfHub`: nodes report to a hub at longer intervals, so many steps can be new at once.
   * `sinceSeconds`: begin of a range that the reader chose; null if the latest steps are shown.
   */
  update(run, shownSeconds, isOfHub = false, sinceSeconds = null) {
    this.isOfHub = isOfHub;
    this.sinceSeconds = sinceSeconds;
    const isOther = run.run !== this.run?.run || run.attempt !== this.run?.attempt;
    if (isOther) this.reset(run);
    this.run = run;
    this.ranks = new Map(run.ranks.map((rank) => [keyOf(rank), rank]));
    const pauseMs = Math.max(MIN_FETCH_MS, (1000 * shownSeconds) / FETCHES_PER_WINDOW);
    const now = performance.now();
    const isOld = now - this.fullFetchMs > FULL_FETCH_MS;
    const isEarlier = sinceSeconds !== null && sinceSeconds < this.reachSeconds;
    const isFull = isOld || isEarlier || this.hasHole || this.hasMissedSteps() || this.hasNew();
    const isDue = now - this.fetchedMs >= pauseMs && (isFull || this.isNews());
    if (isDue && !this.isFetching) this.fetch(isFull);
    return isOther;
  }

  /** Whether more steps closed than a small response holds: the tab was hidden or the browser busy. */
  hasMissedSteps() {
    return this.run.ranks.some((rank) => {
      const known = this.lanes.get(keyOf(rank))?.rows.at(-1)?.step ?? null;
      return known !== null && rank.step - known >= NUM_FRESH_STEPS;
    });
  }

  /** Whether a rank was opened or joined the run. */
  hasNew() {
    return [...this.ranks.keys()].some((key) => !this.asked.has(key));
  }

  /** Whether a piece began after the last response, or the response lacks the piece that is open now. */
  isNews() {
    if (placesOf(this.run) !== this.places) return true;
    return this.run.ranks.some((rank) => {
      const lane = this.lanes.get(keyOf(rank));
      const span = rank.inflight.at(-1);
      return (
        rank.state === "live" && span && (!lane || span.begin_seconds - lastEnd(lane) > GAP_SECONDS)
      );
    });
  }

  /** Fetches all steps occasionally, otherwise only the steps that can have changed. */
  async fetch(isFull) {
    this.isFetching = true;
    const { run, sinceSeconds: since } = this;
    const places = placesOf(run);
    const asked = new Set(this.ranks.keys());
    const query = this.query(isFull);
    for (const key of asked) query.append("rank", key);
    try {
      const rows = await getPages(`api/v1/runs/${encodeURIComponent(run.run)}/timeline`, query);
      if (run.run !== this.run.run) return;
      if (isFull && since === null) this.lanes.clear();
      this.hasHole = false;
      for (const row of rows) {
        this.hasHole ||= !isFull && this.leavesHole(row);
        this.merge(row);
      }
      this.places = places;
      if (isFull) {
        this.fullFetchMs = performance.now();
        this.asked = asked;
        this.reachSeconds = since ?? this.earliestBegin();
      }
      this.onChange();
    } catch {
      this.places = null; // the feed reports an unreachable agent
    } finally {
      this.fetchedMs = performance.now();
      this.isFetching = false;
    }
  }

  /** All steps of the shown range, or the steps that can have changed. */
  query(isFull) {
    const since = this.sinceSeconds;
    const isLong = isFull || this.isOfHub;
    const steps = since !== null && isFull ? MOST_STEPS + 1 : isLong ? NUM_STEPS + 1 : NUM_FRESH_STEPS;
    const query = new URLSearchParams({ steps: String(steps) });
    if (!isFull) query.set("begin", String(this.latestEnd() - SETTLED_SECONDS));
    else if (since !== null) query.set("begin", String(since));
    return query;
  }

  earliestBegin() {
    return Math.min(...[...this.lanes.values()].map((lane) => lane.rows[0].begin_seconds));
  }

  latestEnd() {
    return Math.max(0, ...[...this.lanes.values()].map(lastEnd));
  }

  /** Whether pieces between the lane and this row are missing: steps closed while the request was under way. */
  leavesHole(row) {
    const lane = this.lanes.get(keyOf(row));
    const first = row.pieces[0]?.begin_seconds ?? -Infinity;
    return lane !== undefined && first - lastEnd(lane) > GAP_SECONDS;
  }

  /** Adds a row. A row may begin in the middle of its step: earlier pieces are retained. */
  merge(row) {
    const key = keyOf(row);
    const lane = this.lanes.get(key) ?? { key, role: row.role, rank: row.rank, steps: new Map() };
    this.lanes.set(key, lane);
    const first = row.pieces[0]?.begin_seconds ?? Infinity;
    const known = lane.steps.get(row.step)?.pieces ?? [];
    const earlier = known.filter((piece) => piece.begin_seconds < first);
    lane.steps.set(row.step, { ...row, pieces: [...earlier, ...row.pieces] });
    const most = (this.sinceSeconds === null ? NUM_STEPS : MOST_STEPS) + 1;
    const rows = [...lane.steps.values()].sort((one, other) => one.begin_seconds - other.begin_seconds);
    for (const surplus of rows.splice(0, rows.length - most)) lane.steps.delete(surplus.step);
    lane.rows = rows;
  }

  /** The lanes in the order of the rank table. */
  ordered() {
    const known = [...this.ranks.keys()].filter((key) => this.lanes.has(key));
    return known.map((key) => this.lanes.get(key));
  }

  /** The reported pieces of steps that end after `begin`; open pieces are extended to `now`. */
  piecesOf(lane, now, begin = -Infinity) {
    const shown = lane.rows.filter((row) => (row.end_seconds ?? Infinity) > begin);
    const pieces = shown.flatMap((row) =>
      row.pieces.map((piece) => ({ ...piece, step: row.step })),
    );
    const rank = this.ranks.get(lane.key);
    if (rank?.state !== "live") return pieces;
    const span = rank.inflight.at(-1);
    const known = pieces.length ? pieces.at(-1).end_seconds : -Infinity;
    const openBegin = Math.max(known, span?.begin_seconds ?? known);
    if (!Number.isFinite(openBegin) || openBegin >= now) return pieces;
    const last = pieces.at(-1);
    const [kind, name] = drawnAs(span);
    const isSame = last && last.kind === kind && last.name === name && openBegin === known;
    if (isSame) last.end_seconds = now;
    else pieces.push({ kind, name, begin_seconds: openBegin, end_seconds: now, step: rank.step });
    return pieces;
  }
}

/** [kind, name] of an open piece; an open collective is drawn as a wait, like its time is counted. */
function drawnAs(span) {
  if (!span) return ["idle", "idle"];
  return span.kind === "collective" ? ["wait", "collective"] : [span.kind, span.name];
}

function keyOf(row) {
  return `${row.role}/${row.rank}`;
}

/** A text that changes whenever a rank enters another step, stage or wait. */
function placesOf(run) {
  return JSON.stringify(run.ranks.map((rank) => [rank.step, rank.inflight.at(-1)?.begin_seconds]));
}

/** The end of the latest piece of a lane. */
export function lastEnd(lane) {
  const row = lane.rows.at(-1);
  return row?.pieces.at(-1)?.end_seconds ?? row?.begin_seconds ?? 0;
}

// The ranks that the run's incidents blame, and the ranks that the table shows.

import { duration, elapsed } from "./format.js";

export const MAX_LISTED = 16; // a longer table is hard to read; these ranks are the relevant ones
const NUM_NEIGHBOURS = 3;
const SEVERITIES = ["critical", "warning"];

/** "ROLE/RANK" -> {severity, delays, delayText(now)}, the worst first; pure. */
export function blameOf(run) {
  const found = new Map();
  for (const severity of SEVERITIES) {
    for (const incident of run.incidents.filter((row) => row.severity === severity)) {
      for (const rank of incident.ranks) {
        const key = `${incident.role}/${rank}`;
        const delays = incident.kind === "hang" || incident.lost_seconds !== null;
        const row = { severity, delays, delayText: (now) => delayText(incident, now) };
        if (!found.has(key)) found.set(key, row);
      }
    }
  }
  return found;
}

/** The delay per step, or the delay so far in a hang; "" for an incident that delays no rank. */
function delayText({ kind, lost_seconds: lost, since_seconds: since }, now) {
  if (lost !== null) return `${duration(lost)} a step`;
  return kind === "hang" ? elapsed(now - since) : "";
}

/** The ranks that the table lists: blamed ranks, opened ranks, then as many as fit; pure. */
export function rowsOf(run, blame, opened) {
  const keyOf = (rank) => `${rank.role}/${rank.rank}`;
  const order = [...blame.keys()];
  const blamed = run.ranks
    .filter((rank) => blame.has(keyOf(rank)))
    .sort((one, other) => order.indexOf(keyOf(one)) - order.indexOf(keyOf(other)));
  const others = run.ranks.filter((rank) => !blame.has(keyOf(rank)));
  if (run.places.length <= MAX_LISTED) return [...blamed, ...others];
  const chosen = others.filter((rank) => opened.has(keyOf(rank)));
  const rest = others.filter((rank) => !opened.has(keyOf(rank)));
  const numNeighbours = Math.max(0, NUM_NEIGHBOURS + 1 - blamed.length);
  return [...blamed, ...chosen, ...rest.slice(0, Math.max(numNeighbours, 1))];
}

// Alerts that fire now. The banner above shows the alerts of incidents in the line of the incident.
// This list has one line for each other alert and for each receiver that cannot be reached.

import { reconcile, setHidden } from "./element.js";
import { getJson } from "./feed.js";
import { VerdictRow } from "./verdict_row.js";

const ASK_MS = 2000;
const LEVELS = { critical: "bad", warning: "warn", info: "quiet", none: "quiet" };

/** Polls the agent. Alerts that another alert already covers are not listed. */
export class AlertList {
  constructor() {
    this.node = document.getElementById("alerts");
    this.list = document.getElementById("alert-list");
    this.rows = new Map();
    this.latest = { alerts: [], deliveries: [] };
    this.run = null;
    setInterval(() => document.hidden || this.ask(), ASK_MS);
    this.ask();
  }

  get firing() {
    return this.latest.alerts;
  }

  update(run) {
    this.run = run?.run ?? null;
    this.show();
  }

  async ask() {
    try {
      this.latest = await getJson("api/v1/alerts");
    } catch {
      return; // the agent is busy or unreachable (the banner says so): ask again later
    }
    this.show();
  }

  show() {
    const firing = this.firing.filter(
      (row) => row.run === this.run && !row.is_inhibited && !row.incident,
    );
    const lines = [...firing.map(alertLine), ...this.latest.deliveries.filter(isLost).map(lostLine)];
    setHidden(this.node, !lines.length);
    reconcile(this.list, this.rows, lines.map((line) => line.key), () => new VerdictRow());
    for (const line of lines) this.rows.get(line.key).update(line);
  }
}

function alertLine(row) {
  const since = row.since_step === null ? "" : `since step ${row.since_step}. `;
  return {
    key: `${row.alert}/${row.severity}`,
    level: LEVELS[row.severity],
    title: `${row.alert} (${row.severity})`,
    detail: `${since}${row.summary}`,
    evidence: [...row.lines, row.meaning, row.diagnosis, row.mitigation],
  };
}

function isLost(delivery) {
  return delivery.is_reached === false || delivery.num_dropped > 0;
}

function lostLine(delivery) {
  const dropped = delivery.num_dropped ? `${delivery.num_dropped} dropped, ` : "";
  return {
    key: `delivery/${delivery.kind}/${delivery.target}`,
    level: "warn",
    title: `Alerts do not reach ${delivery.kind} ${delivery.target}`,
    detail: `${dropped}${delivery.num_waiting} waiting. ${delivery.last_error}`,
    evidence: [],
  };
}

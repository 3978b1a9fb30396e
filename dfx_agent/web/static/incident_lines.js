// Banner lines of incidents: who and what, since when, at what cost, what to do. The page shows the
// agent's sentences unchanged and adds clocks and sums, but no verdict.

import { duration, elapsed, hours, isLiving, percent, rankList } from "./format.js";
import { isBreakdown, titleOf } from "./pipeline.js";

const INCIDENT_LEVELS = { critical: "bad", warning: "warn", info: "note" };
const LEAST_HOURS = 0.05;
// these incidents stop the full job
const STOPS_ALL = new Set(["hang", "crash"]);
const VIEW_OF_KIND = { divergence: "health", memory: "memory", data: "data" };

/** Lines of open incidents; the judge is not certain of the `doubtful` ones at the moment. */
export function incidentLines(run, now, alerts, doubtful = []) {
  const lines = run.incidents
    .filter((incident) => !isInformation(incident))
    .map((incident) => incidentLine(run, incident, now, alerts));
  for (const { incident, seenSeconds } of doubtful) {
    const line = incidentLine(run, incident, now, alerts);
    const detail = `Not certain at the moment, last seen ${elapsed(now - seenSeconds)} ago · ${line.detail}`;
    lines.push({ ...line, detail, isDoubtful: true });
  }
  return lines;
}

/** Notes that need no action do not belong in the banner. */
export function isInformation(incident) {
  return incident.state === "noted" && !incident.action;
}

function incidentLine(run, incident, now, alerts) {
  const fires = alerts.filter((row) => row.run === run.run && row.incident === incident.id);
  return {
    key: incident.id,
    incident,
    level: INCIDENT_LEVELS[incident.severity] ?? "warn",
    title: incident.headline || sentence(incident.summary),
    detail: costLine(run, incident, now),
    action: incident.action,
    show: targetOf(incident),
    runbook: incident.runbook,
    evidence: evidenceOf(incident, fires),
  };
}

/** The target of the button Show: the first blamed rank, else the view for this kind. */
function targetOf(incident) {
  const [rank] = incident.ranks;
  if (rank !== undefined) return { rank: `${incident.role}/${rank}`, text: `Show rank ${rank}` };
  const view = VIEW_OF_KIND[incident.kind];
  return view ? { view, text: "Show" } : null;
}

function evidenceOf(incident, fires) {
  return [
    incident.sentence,
    ...incident.evidence,
    ...(fires.length || !incident.alerts.length ? [] : [`Alerts: ${incident.alerts.join(", ")}`]),
    ...fires.flatMap(runbookLines),
  ];
}

function runbookLines(row) {
  const head = `${row.alert} (${row.severity}): ${row.summary}`;
  return [head, row.meaning, row.diagnosis, row.mitigation];
}

/** "since step 9, 41 min · 0.30 s of each step (23 %) · 8.6 GPU-hours so far". */
function costLine(run, incident, now) {
  const roles = new Set(run.places.map((rank) => rank.role));
  const parts = [
    roles.size > 1 ? incident.role : "",
    beginText(run, incident, now),
    lostText(run, incident),
    hoursText(run, incident, now),
  ];
  return parts.filter(Boolean).join(" · ");
}

function beginText(run, { step, since_seconds: since }, now) {
  const where = step === null ? "" : `since step ${step}, `;
  // in a job that has ended, no incident lasts until now
  if (!run.places.some(isLiving)) {
    return `${step === null ? "" : `step ${step}, `}began at ${clock(since)}`;
  }
  return where ? where + elapsed(now - since) : `for ${elapsed(now - since)}`;
}

function lostText(run, incident) {
  const lost = incident.lost_seconds;
  if (lost === null) return (incident.cost ?? "").replace(/\.$/, "");
  const step = stepSeconds(run, incident.role);
  return `${duration(lost)} of each step${step ? ` (${percent(lost / step)})` : ""}`;
}

function stepSeconds(run, role) {
  const walls = run.steps.filter((row) => row.role === role).map((row) => row.mean.wall_seconds);
  return walls.length ? walls.reduce((sum, wall) => sum + wall, 0) / walls.length : null;
}

function hoursText(run, incident, now) {
  const lost = lostHours(run, incident, now);
  if (lost === null || lost < LEAST_HOURS) return "";
  const hasDevices = run.ranks.some((rank) => rank.devices.length || rank.device_names?.length);
  return `${hours(lost)} ${hasDevices ? "GPU-hours" : "rank-hours"} so far`;
}

/** Rank-hours lost since the incident began; null if that is not known. Pure. */
export function lostHours(run, incident, now) {
  const living = run.places.filter(isLiving);
  const ofRole = living.filter((place) => !incident.role || place.role === incident.role);
  const all = ((now - incident.since_seconds) * (STOPS_ALL.has(incident.kind) ? living : ofRole).length) / 3600;
  if (!living.length) return null;
  if (STOPS_ALL.has(incident.kind)) return all;
  const step = stepSeconds(run, incident.role);
  if (incident.lost_seconds === null || !step) return null;
  return all * Math.min(1, incident.lost_seconds / step);
}

/** Lines of suspicions: the suspected rank, and the time until the verdict becomes `found`. */
export function suspicionLines(run, now) {
  const kinds = new Set(run.incidents.map((incident) => incident.kind));
  // a critical incident explains the suspicions or is more urgent
  if (run.incidents.some(({ state, severity }) => state === "found" && severity === "critical")) return [];
  return run.verdicts
    .map((verdict, index) => ({ ...verdict, headline: run.headlines?.[index] }))
    .filter((verdict) => verdict.state === "insufficient evidence" && !kinds.has(verdict.kind))
    .filter((verdict) => verdict.suspicion || verdict.action)
    .map((verdict) => suspicionLine(verdict, now));
}

function suspicionLine(verdict, now) {
  const { suspicion, summary } = verdict;
  const title = verdict.headline || summary;
  const rank = suspicion?.ranks[0];
  return {
    key: `suspicion ${verdict.kind} ${verdict.role}`,
    level: "unsure",
    title,
    detail: restOf(summary, title),
    action: verdict.action,
    show: rank === undefined ? null : { rank: `${verdict.role}/${rank}`, text: `Show rank ${rank}` },
    bar: suspicion && {
      seconds: now - suspicion.since_seconds,
      limitSeconds: suspicion.limit_seconds,
    },
    evidence: verdict.evidence,
  };
}

/** Lines of closed incidents: with their severity if they lasted until the run ended, else as notes. */
export function pastLines(run, doubtful = []) {
  const lasting = new Set(doubtful.map(({ incident }) => incident.id));
  return (run.past_incidents ?? [])
    .filter((incident) => !lasting.has(incident.id))
    .map((incident) => ({
      key: incident.id,
      incident,
      level: incident.is_until_run_end ? (INCIDENT_LEVELS[incident.severity] ?? "warn") : "note",
      title: incident.headline || sentence(incident.summary),
      detail: pastDetail(incident),
      action: incident.is_until_run_end ? incident.action : "",
      show: incident.is_until_run_end ? targetOf(incident) : null,
      runbook: incident.is_until_run_end ? incident.runbook : "",
      evidence: [incident.sentence, ...incident.evidence],
    }));
}

function pastDetail(incident) {
  const [begin, end] = [incident.since_seconds, incident.end_seconds].map(clock);
  const step = incident.step === null ? "" : ` (step ${incident.step})`;
  if (!incident.is_until_run_end) return `From ${begin}${step}, over since ${end}.`;
  return `From ${begin}${step}, until the run ended at ${end}.`;
}

/** The bottleneck of the job, or the breakdown of its steps, if no problem is seen; else null. */
export function bottleneckLine(run) {
  const bottleneck = run.bottleneck;
  if (!bottleneck) return null;
  const isOfStep = isBreakdown(bottleneck);
  if (!isOfStep && (bottleneck.state !== "found" || !bottleneck.bound_by)) return null;
  const share = bottleneck.cost_ratio === null || isOfStep ? "" : `, ${percent(bottleneck.cost_ratio)}`;
  return {
    key: "bottleneck",
    level: "quiet",
    sign: "→",
    title: `${titleOf(bottleneck)}${share}`,
    detail: bottleneck.summary,
    show: { view: "pipeline", text: "Show" },
  };
}

/** Text to paste into a chat: the agent's sentence, the first evidence, the address. */
export function chatText(run, incident, address) {
  const who = incident.ranks.length ? ` (${rankList(incident.ranks)})` : "";
  const evidence = incident.evidence.slice(0, 3).map((line) => `> ${line}`);
  return [`${incident.kind}${who} in run ${run.run}: ${incident.sentence}`, ...evidence, address].join("\n");
}

/** What a summary says after its headline, as sentences. */
function restOf(summary, headline) {
  const rest = summary.slice(headline.length - (summary.startsWith(headline) ? 0 : 1));
  const [last] = headline.match(/ranks? [\d, and]+(?=\.?$)/) ?? ["it"];
  return sentence(rest.replace(/^[\s,;:.]*/, "").replace(/^which\b/, last.trim()));
}

export function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

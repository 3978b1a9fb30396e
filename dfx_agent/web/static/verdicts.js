// The banner's text: the run's incidents with their evidence, and notes that the page adds (values
// that are not finite, lost records, refused segments). The page makes no verdicts: only the agent
// decides the run's standing, which makes the page green.

import { deviceNotes } from "./devices.js";
import { count, isLiving, rankList } from "./format.js";
import {
  bottleneckLine,
  incidentLines,
  isInformation,
  pastLines,
  sentence,
  suspicionLines,
} from "./incident_lines.js";

const MAX_LINES = 8;
const [LOST, EARLIER, DROPPED] = [0, 1, 2]; // indices in a place's `lost`
const LEVELS = ["bad", "warn", "unsure", "note", "good"];

/**
 * Lines {key, level, title, detail, action, evidence, incident}, worst first; pure. A level is "bad",
 * "warn", "unsure" (a suspicion), "note", "good" (the run is clear) or "quiet" (other verdicts, and
 * why a verdict is missing). `now` is the agent's clock. `alerts` are the firing alerts, used for
 * their runbook. `doubtful` incidents are greyed. Without a run, the lines are only about the agent.
 */
export function verdictsOf(snapshot, run, now, alerts, doubtful = []) {
  if (!run) return keyed([...agentLines(snapshot.agent, now), ...finishedLines(snapshot)]);
  const lines = incidentLines(run, now, alerts, doubtful);
  lines.push(...suspicionLines(run, now), ...pastLines(run, doubtful));
  const part = partLines(run, snapshot.agent.hub);
  lines.push(...deaths(run), ...nonFinite(run), ...losses(run));
  lines.push(...agentLines(snapshot.agent, now), ...endings(run));
  lines.sort((one, other) => LEVELS.indexOf(one.level) - LEVELS.indexOf(other.level));
  const surplus = lines.splice(MAX_LINES);
  if (surplus.length) {
    const detail = `First of them: ${surplus[0].title}`;
    lines.push({ level: surplus[0].level, title: `And ${surplus.length} more`, detail });
  }
  const hasProblem = lines.some((line) => line.level !== "note");
  lines.push(...restLines(run, snapshot.agent, hasProblem));
  const bottleneck = hasProblem ? null : bottleneckLine(run);
  if (bottleneck) lines.push(bottleneck);
  const origin = run.step_origin
    ? [{ key: "steps", level: "note", title: run.step_origin }]
    : [];
  return keyed([...part, ...origin, ...lines]);
}

/** Says that this agent sees only a part of the job, and where the full job is shown. */
function partLines(run, hub) {
  if (!run.part) return [];
  const line = { key: "part", level: "note", title: sentence(run.part) };
  if (!hub) {
    const detail = "To judge the full job, connect the agents of all nodes to a hub (--join URL).";
    return [{ ...line, detail }];
  }
  if (hub.state !== "joined") {
    const why = hub.message ? `: ${hub.message}` : "";
    const detail = `The hub ${hub.url} does not accept reports from this node${why}.`;
    return [{ ...line, level: "warn", detail }];
  }
  const href = `${hub.url}/#${new URLSearchParams({ run: run.run })}`;
  const link = { href, text: "Open its page" };
  return [{ ...line, detail: "The hub judges the full job.", link }];
}

/** A constant key for each line, so that its element, opened or not, is reused. */
function keyed(lines) {
  const times = new Map();
  return lines.map((line) => {
    const subject = line.key ?? line.title;
    const time = times.get(subject) ?? 0;
    times.set(subject, time + 1);
    const key = `${subject}#${time}`;
    return { evidence: [], ...line, key };
  });
}

/** Runs of an earlier agent of this folder: only their conclusions are stored. */
function finishedLines(snapshot) {
  return (snapshot.finished ?? []).map((run) => ({
    key: `finished ${run.run}`,
    level: { found: "bad", warning: "warn" }[run.standing.state] ?? "note",
    title: `Run ${run.run} has ended.`,
    detail: run.standing.reason,
    evidence: run.past_incidents.map((incident) => incident.sentence),
  }));
}

/** Ranks that died and that no incident mentions, for example after a hang. */
function deaths(run) {
  const named = new Set(
    run.incidents
      .filter((incident) => incident.kind === "crash")
      .flatMap((incident) => incident.ranks.map((rank) => `${incident.role}/${rank}`)),
  );
  const dead = run.places.filter(
    (rank) => rank.state === "died" && !named.has(`${rank.role}/${rank.rank}`),
  );
  if (!dead.length) return [];
  const pids = dead.map((rank) => rank.pid).join(", ");
  return [
    {
      level: "note",
      title: `${sentence(nameOf(run, dead))} died`,
      detail: `Exited without closing the segment: pid ${pids}.`,
    },
  ];
}

/** One line for the kinds that are clear and the kinds that could not be judged. */
function restLines(run, agent, hasProblem) {
  const rest = run.verdicts.filter((verdict) => verdict.state !== "found");
  const isClear = run.standing.state === "clear" && !hasProblem;
  if (hasProblem && !rest.length) return [];
  const sources = agent.nodes.length
    ? `reports of ${count(agent.nodes.length)} nodes`
    : `${count(agent.num_segments)} segments`;
  const checked =
    `Checked: ${run.places.length} ranks for life, ${count(run.scalars.length)} scalars for NaN, ` +
    `${sources} for loss and damage.`;
  const isUnsure = run.standing.state === "insufficient evidence";
  const why = isUnsure && !hasProblem ? sentence(run.standing.reason) : "";
  const noted = run.incidents.filter(isInformation).map((incident) => incident.sentence);
  return [
    {
      key: "rest",
      level: isClear ? "good" : "quiet",
      title: isClear ? "No problem found" : isUnsure ? "Not everything can be judged" : "Otherwise",
      detail: why || restWords(rest) || checked,
      evidence: rest.length
        ? [...noted, ...rest.flatMap((verdict) => restEvidence(run, verdict)), checked]
        : noted,
    },
  ];
}

function restEvidence(run, verdict) {
  const roles = new Set(run.places.map((rank) => rank.role));
  const subject = sentence(roles.size > 1 && verdict.role ? `${verdict.kind} (${verdict.role})` : verdict.kind);
  const head = `${subject}: ${verdict.state}${verdict.summary ? ` (${verdict.summary})` : ""}`;
  return [head, ...verdict.evidence.map((line) => `    ${line}`)];
}

/** "Hang, crash: clear. Straggler: insufficient evidence." */
function restWords(rest) {
  const byState = new Map();
  for (const { state, kind } of rest) {
    byState.set(state, (byState.get(state) ?? new Set()).add(kind));
  }
  // A kind that is clear for one role and undecided for another is undecided.
  const unsure = byState.get("insufficient evidence");
  for (const kind of unsure ?? []) byState.get("clear")?.delete(kind);
  return [...byState]
    .filter(([, kinds]) => kinds.size)
    .map(([state, kinds]) => `${sentence([...kinds].join(", "))}: ${state}.`)
    .join(" ");
}

function nonFinite(run) {
  return run.scalars
    .filter((row) => row.moments.count > 0 && !Number.isFinite(Number(row.moments.sum)))
    .map((row) => ({
      level: "note",
      title: `${row.key} is ${row.moments.sum}${row.step === null ? "" : ` at step ${row.step}`}`,
      detail: "The latest reported value is not a finite number.",
    }));
}

function lossesOf(dropped) {
  const read = `${count(dropped.num_records)} of their records were read`;
  return `${read}, ${count(dropped.num_lost_records)} were lost.`;
}

function losses(run) {
  const lines = [];
  for (const dropped of run.dropped_ranks) {
    lines.push({
      key: `gone ${dropped.role}`,
      level: "note",
      title: `${count(dropped.num_ranks)} ended processes of ${dropped.role} are not listed`,
      detail: `Only the latest ended processes are listed. ${lossesOf(dropped)}`,
    });
  }
  const lost = run.places.filter((rank) => rank.lost[LOST] > 0);
  if (lost.length) {
    const total = lost.reduce((sum, rank) => sum + rank.lost[LOST], 0);
    lines.push({
      key: "lost",
      level: "note",
      title: `${count(total)} records lost on ${nameOf(run, lost)}`,
      detail:
        "They were overwritten before the agent read them: times and counts of these ranks are too low.",
    });
  }
  const earlier = run.places.filter((rank) => rank.lost[EARLIER] > 0);
  if (earlier.length) {
    const total = earlier.reduce((sum, rank) => sum + rank.lost[EARLIER], 0);
    lines.push({
      key: "earlier",
      level: "note",
      title: `${count(total)} records of ${nameOf(run, earlier)} are from before this agent`,
      detail: "They were overwritten before the agent began to read, so its totals begin later than the run.",
    });
  }
  const dropped = run.places.filter((rank) => rank.lost[DROPPED] > 0);
  if (dropped.length) {
    const total = dropped.reduce((sum, rank) => sum + rank.lost[DROPPED], 0);
    lines.push({
      key: "dropped",
      level: "note",
      title: `${count(total)} records dropped in ${nameOf(run, dropped)}`,
      detail: "The guest could not write them: names or values did not fit its segment.",
    });
  }
  if (run.num_stale_scalars > 0) {
    lines.push({
      key: "stale",
      level: "note",
      title: `${count(run.num_stale_scalars)} scalar values are not in the curves`,
      detail: "They belong to old steps, or the job reports more than 10,000 names.",
    });
  }
  return lines;
}

const TITLES = {
  clock: "The wall clock was set",
  evidence: "Evidence cannot be written",
  exporter: "Exporter failed",
  incidents: "Incidents cannot be stored",
  room: "Processes that start now are not observed",
  signals: "Baselines cannot be stored",
  totals: "Counters cannot be stored",
};

function problemTitle({ kind, path }) {
  if (TITLES[kind]) return TITLES[kind];
  if (kind === "stranger") return `${path} has no permission to send to this hub`;
  return kind === "facts" ? `The report of ${path} cannot be used` : `Segment refused (${kind})`;
}

function agentLines(agent, now) {
  const lines = agent.problems.map((problem) => ({
    level: "warn",
    title: problemTitle(problem),
    detail: problem.message,
  }));
  if (agent.blind) {
    lines.unshift({
      key: "blind",
      level: "bad",
      title: `Blind since ${new Date(agent.blind.since_seconds * 1000).toLocaleTimeString("en-GB")}`,
      detail: `${agent.blind.reason}. The values shown for this run are out of date.`,
    });
  }
  lines.push(...deviceNotes(agent, now));
  if (agent.other_agent_pid !== null) {
    lines.push({
      level: "note",
      title: `Another agent (pid ${agent.other_agent_pid}) serves the same folder`,
      detail: "Both show the same runs. The other agent cleans up after dead processes.",
    });
  }
  if (agent.num_dropped_runs > 0) {
    lines.push({
      key: "gone runs",
      level: "note",
      title: `${count(agent.num_dropped_runs)} ended ${agent.num_dropped_runs === 1 ? "run is" : "runs are"} not listed`,
      detail: "The page lists the latest 32 ended runs for one hour each.",
    });
  }
  if (agent.spans?.num_left_out > 0) {
    lines.push({
      key: "spans",
      level: "note",
      title: `${count(agent.spans.num_left_out)} spans of the job were not accepted`,
      detail: `The first: ${agent.spans.first}.`,
    });
  }
  if (agent.num_exporter_errors > 0) {
    lines.push({
      key: "exporters",
      level: "warn",
      title: `${count(agent.num_exporter_errors)} exporter errors`,
      detail: "Some destinations did not receive all data. The agent's output has the reasons.",
    });
  }
  return lines;
}

function endings(run) {
  return [...ending(run, "exited"), ...ending(run, "detached")];
}

function ending(run, state) {
  const gone = run.places.filter((rank) => rank.state === state);
  if (!gone.length) return [];
  if (gone.length === run.places.length) {
    const how = state === "exited" ? "exited in an orderly way" : "were detached";
    return [
      {
        level: "note",
        title: run.ending || "The run has ended",
        detail: `All ${gone.length} ranks ${how}.`,
      },
    ];
  }
  const numLiving = run.places.filter(isLiving).length;
  return [
    {
      level: "note",
      title: `${sentence(nameOf(run, gone))} ${state}`,
      detail: `${numLiving} of ${run.places.length} ranks are observed.`,
    },
  ];
}

/** "ranks 0–2", with the role in front when the run has several. */
function nameOf(run, ranks) {
  const roles = new Set(run.places.map((rank) => rank.role));
  const list = rankList(ranks.map((rank) => rank.rank));
  return roles.size > 1 ? `${ranks[0].role} ${list}` : list;
}

// What is wrong, in words: the agent's verdicts with their evidence, and what the page sees itself
// (values that are no numbers, lost records, refused segments). No figure, no verdict.

import { count, duration, elapsed, rankList } from "./format.js";

const MAX_LINES = 8;
const FOUND_LEVELS = { hang: "bad", crash: "bad", memory: "bad", divergence: "bad", straggler: "warn" };
const LEVELS = ["bad", "warn", "note", "good"];

/**
 * Lines {key, level, title, detail, evidence}, worst first; pure. A level is "bad", "warn", "note",
 * "good" (nothing was found) or "quiet" (nothing else was found).
 * `now` is the agent's clock; without a run only the agent itself is judged.
 */
export function verdictsOf(snapshot, run, now) {
  if (!run) return keyed(agentLines(snapshot.agent));
  const found = run.verdicts.filter((verdict) => verdict.state === "found");
  const lines = found.map((verdict) => foundLine(run, verdict, now));
  lines.push(...deaths(run, found), ...nonFinite(run), ...losses(run));
  lines.push(...agentLines(snapshot.agent), ...endings(run));
  lines.sort((a, b) => LEVELS.indexOf(a.level) - LEVELS.indexOf(b.level));
  const surplus = lines.splice(MAX_LINES);
  if (surplus.length) {
    const detail = `First of them: ${surplus[0].title}`;
    lines.push({ level: surplus[0].level, title: `And ${surplus.length} more`, detail });
  }
  const hasProblem = lines.some((line) => line.level !== "note");
  lines.push(...restLines(run, snapshot.agent, hasProblem));
  return keyed(lines);
}

/** A line keeps its node, opened or not, while it is about the same thing. */
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

function foundLine(run, verdict, now) {
  return {
    key: JSON.stringify([verdict.kind, verdict.role, verdict.cause, verdict.stage, verdict.ranks]),
    level: FOUND_LEVELS[verdict.kind] ?? "warn",
    title: verdict.summary,
    detail: foundDetail(run, verdict, now),
    evidence: verdict.evidence,
  };
}

function foundDetail(run, verdict, now) {
  const roles = new Set(run.ranks.map((rank) => rank.role));
  const { cause, step, lost_seconds: lost, since_seconds: since } = verdict;
  const parts = [roles.size > 1 ? verdict.role : "", cause, step === null ? "" : `step ${step}`];
  if (lost !== null) parts.push(`${duration(lost)} lost per step`);
  if (since !== null) parts.push(`for ${elapsed(now - since)}`);
  return parts.filter(Boolean).join(" · ");
}

/** Ranks that died and of which no verdict speaks. */
function deaths(run, found) {
  const named = new Set(
    found
      .filter((verdict) => verdict.kind === "crash")
      .flatMap((verdict) => verdict.ranks.map((rank) => `${verdict.role}/${rank}`)),
  );
  const dead = run.ranks.filter(
    (rank) => rank.state === "died" && !named.has(`${rank.role}/${rank.rank}`),
  );
  if (!dead.length) return [];
  const pids = dead.map((rank) => rank.pid).join(", ");
  return [
    {
      level: "bad",
      title: `${sentence(nameOf(run, dead))} died`,
      detail: `Gone without closing the segment: pid ${pids}.`,
    },
  ];
}

/** What was looked at without finding anything, one quiet line for all of it. */
function restLines(run, agent, hasProblem) {
  const rest = run.verdicts.filter((verdict) => verdict.state !== "found");
  if (hasProblem && !rest.length) return [];
  const checked =
    `Checked: ${run.ranks.length} ranks for life, ${count(run.scalars.length)} scalars for NaN, ` +
    `${count(agent.num_segments)} segments for loss and damage.`;
  return [
    {
      key: "rest",
      level: hasProblem ? "quiet" : "good",
      title: hasProblem ? "Otherwise" : "No problem seen",
      detail: rest.length ? restWords(rest) : checked,
      evidence: rest.length ? [...rest.flatMap((verdict) => restEvidence(run, verdict)), checked] : [],
    },
  ];
}

function restEvidence(run, verdict) {
  const roles = new Set(run.ranks.map((rank) => rank.role));
  const subject = sentence(roles.size > 1 ? `${verdict.kind} (${verdict.role})` : verdict.kind);
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
  for (const kind of byState.get("insufficient evidence") ?? []) byState.get("clear")?.delete(kind);
  return [...byState]
    .filter(([, kinds]) => kinds.size)
    .map(([state, kinds]) => `${sentence([...kinds].join(", "))}: ${state}.`)
    .join(" ");
}

function nonFinite(run) {
  return run.scalars
    .filter((row) => row.moments.count > 0 && !Number.isFinite(Number(row.moments.sum)))
    .map((row) => ({
      level: "bad",
      title: `${row.key} is ${row.moments.sum}${row.step === null ? "" : ` at step ${row.step}`}`,
      detail: "The newest reported value is not a finite number.",
    }));
}

function losses(run) {
  const lines = [];
  const lost = run.ranks.filter((rank) => rank.num_lost_records > 0);
  if (lost.length) {
    const total = lost.reduce((sum, rank) => sum + rank.num_lost_records, 0);
    lines.push({
      key: "lost",
      level: "warn",
      title: `${count(total)} records lost on ${nameOf(run, lost)}`,
      detail:
        "They were overwritten before the agent read them: times and counts of these ranks are too low.",
    });
  }
  const dropped = run.ranks.filter((rank) => rank.num_guest_drops > 0);
  if (dropped.length) {
    const total = dropped.reduce((sum, rank) => sum + rank.num_guest_drops, 0);
    lines.push({
      key: "dropped",
      level: "warn",
      title: `${count(total)} records dropped in ${nameOf(run, dropped)}`,
      detail: "The guest could not write them: names or values did not fit its segment.",
    });
  }
  if (run.num_stale_scalars > 0) {
    lines.push({
      key: "stale",
      level: "note",
      title: `${count(run.num_stale_scalars)} scalar values came too late`,
      detail: "They belong to steps long past and are not in the curves.",
    });
  }
  return lines;
}

function agentLines(agent) {
  const lines = agent.problems.map((problem) => ({
    level: "warn",
    title: problem.kind === "exporter" ? "Exporter failed" : `Segment refused (${problem.kind})`,
    detail: problem.message,
  }));
  if (agent.blind) {
    lines.unshift({
      key: "blind",
      level: "bad",
      title: `Blind since ${new Date(agent.blind.since_seconds * 1000).toLocaleTimeString()}`,
      detail: `${agent.blind.reason}. What is shown of it says nothing about now.`,
    });
  }
  if (agent.other_agent_pid !== null) {
    lines.push({
      level: "note",
      title: `Another agent (pid ${agent.other_agent_pid}) serves the same folder`,
      detail: "Both show the same runs; the other one removes what dead processes leave behind.",
    });
  }
  if (agent.num_exporter_errors > 0) {
    lines.push({
      key: "exporters",
      level: "warn",
      title: `${count(agent.num_exporter_errors)} exporter errors`,
      detail: "Some destinations did not get everything; the agent's own output has the reasons.",
    });
  }
  return lines;
}

function endings(run) {
  const gone = run.ranks.filter((rank) => rank.state === "exited");
  if (!gone.length) return [];
  if (gone.length === run.ranks.length) {
    return [
      {
        level: "note",
        title: "The run has ended",
        detail: `All ${gone.length} ranks exited in an orderly way.`,
      },
    ];
  }
  return [
    {
      level: "note",
      title: `${sentence(nameOf(run, gone))} exited`,
      detail: `${run.ranks.length - gone.length} of ${run.ranks.length} ranks are still there.`,
    },
  ];
}

/** "ranks 0–2", with the role in front when the run has several. */
function nameOf(run, ranks) {
  const roles = new Set(run.ranks.map((rank) => rank.role));
  const list = rankList(ranks.map((rank) => rank.rank));
  return roles.size > 1 ? `${ranks[0].role} ${list}` : list;
}

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

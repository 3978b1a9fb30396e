// What is plainly wrong, in words, with the figures that show it. No figure, no verdict.

import { element, reconcile, setHidden, setText } from "./element.js";
import { count, duration, elapsed, rankList } from "./format.js";

const MIN_STUCK_SECONDS = 5;
const MIN_STEPS = 3;
const STUCK_RATIO = 3;
const MAX_LINES = 8;

/**
 * Lines {level: "bad" | "warn" | "note" | "good", title, detail}, worst first; pure.
 * `now` is the agent's clock; without a run only the agent itself is judged.
 */
export function verdictsOf(snapshot, run, now) {
  if (!run) return agentLines(snapshot.agent);
  const lines = [...deaths(run, now), ...stuck(run, now), ...nonFinite(run), ...losses(run)];
  lines.push(...agentLines(snapshot.agent), ...endings(run));
  const order = ["bad", "warn", "note"];
  lines.sort((a, b) => order.indexOf(a.level) - order.indexOf(b.level));
  if (!lines.some((line) => line.level !== "note")) lines.push(nothingSeen(run, snapshot.agent));
  const surplus = lines.splice(MAX_LINES);
  if (surplus.length) {
    const detail = `First of them: ${surplus[0].title}`;
    lines.push({ level: surplus[0].level, title: `And ${surplus.length} more`, detail });
  }
  return lines;
}

/** Ranks that died at the same place of the same step share a line. */
function deaths(run, now) {
  const groups = new Map();
  for (const rank of run.ranks.filter((row) => row.state === "died")) {
    const key = JSON.stringify([rank.role, rank.step, rank.inflight.map((span) => span.name)]);
    groups.set(key, [...(groups.get(key) ?? []), rank]);
  }
  return [...groups.values()].map((ranks) => deathLine(run, ranks, now));
}

function deathLine(run, ranks, now) {
  const [first] = ranks;
  const place = placeOf(first);
  const step = first.step === null ? "" : ` ${place ? "of" : "in"} step ${first.step}`;
  const signs = ranks.map((rank) => rank.last_event_seconds).filter((seconds) => seconds !== null);
  const since = signs.length ? `; last sign ${elapsed(now - Math.max(...signs))} ago` : "";
  const pids = `${ranks.length > 1 ? "pids" : "pid"} ${ranks.map((rank) => rank.pid).join(", ")}`;
  const nodes = [...new Set(ranks.map((rank) => rank.node))].join(", ");
  return {
    level: "bad",
    title: `${sentence(nameOf(run, ranks))} died${place}${step}`,
    detail: `Gone without closing the segment: ${pids} on ${nodes}${since}.`,
  };
}

/** " in backward in actor_update", " waiting (barrier)", from what is open. */
function placeOf(rank) {
  const names = rank.inflight
    .slice(-2)
    .map((span) => (span.kind === "wait" ? ` waiting (${span.name})` : ` in ${span.name}`));
  return names.reverse().join("");
}

/** Live ranks that are at one place more than 3 times as long as in any of their last steps. */
function stuck(run, now) {
  const groups = new Map();
  for (const rank of run.ranks) {
    const found = rank.state === "live" ? overdue(run, rank, now) : null;
    if (!found) continue;
    const key = `${rank.role}:${found.span.kind}:${found.span.name}`;
    groups.set(key, [...(groups.get(key) ?? []), { rank, ...found }]);
  }
  const lines = [...groups.values()].map((group) => stuckLine(run, group));
  return lines.sort((a, b) => a.isWait - b.isWait);
}

function stuckLine(run, group) {
  const { span } = group[0];
  const isWait = span.kind === "wait";
  const ranks = group.map((entry) => entry.rank);
  const longest = Math.max(...group.map((entry) => entry.seconds));
  const usual = Math.max(...group.map((entry) => entry.usualSeconds));
  const verb = group.length > 1 ? "have" : "has";
  const doing = isWait ? `been waiting (${span.name})` : `been in ${span.name}`;
  return {
    level: isWait ? "warn" : "bad",
    isWait: Number(isWait),
    title: `${sentence(nameOf(run, ranks))} ${verb} ${doing} for ${elapsed(longest)}`,
    detail:
      `In the last ${group[0].numSteps} steps it took at most ${duration(usual)} of a step` +
      `${usual > 0.001 ? `: now ${Math.floor(longest / usual)} times that` : ""}.`,
  };
}

/**
 * The innermost open span if it is overdue. What is compared is time without any inner event
 * (a long parent of short children is no news) with the same rank's time in a whole step.
 */
function overdue(run, rank, now) {
  const span = rank.inflight.at(-1);
  if (!span) return null;
  const seconds = now - Math.max(span.begin_seconds, rank.last_event_seconds ?? 0);
  const past = secondsPerStep(run, rank, span);
  if (past.length < MIN_STEPS || seconds < MIN_STUCK_SECONDS) return null;
  const usualSeconds = Math.max(...past);
  if (seconds <= STUCK_RATIO * usualSeconds) return null;
  return { span, seconds, usualSeconds, numSteps: past.length };
}

function secondsPerStep(run, rank, span) {
  const cells = run.steps
    .filter((row) => row.role === rank.role)
    .flatMap((row) => row.cells.filter((cell) => cell.rank === rank.rank));
  const seconds = cells.map(({ split }) => {
    if (span.kind === "stage") return split.stage_seconds[span.name] ?? 0;
    return Object.values(split.wait_seconds[span.name] ?? {}).reduce((a, b) => a + b, 0);
  });
  // A stage seen in none of these steps (a first validation) has nothing to be compared with.
  return seconds.some((s) => s > 0) ? seconds : [];
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
      level: "warn",
      title: `${count(total)} records dropped in ${nameOf(run, dropped)}`,
      detail: "The guest could not write them: names or values did not fit its segment.",
    });
  }
  if (run.num_stale_scalars > 0) {
    lines.push({
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
    title: `Segment refused (${problem.kind})`,
    detail: problem.message,
  }));
  if (agent.other_agent_pid !== null) {
    lines.push({
      level: "note",
      title: `Another agent (pid ${agent.other_agent_pid}) serves the same folder`,
      detail: "Both show the same runs; the other one removes what dead processes leave behind.",
    });
  }
  if (agent.num_exporter_errors > 0) {
    lines.push({
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

function nothingSeen(run, agent) {
  const numSteps = Math.min(...run.ranks.map((rank) => stepsOf(run, rank)), Infinity);
  const times =
    numSteps >= MIN_STEPS
      ? `current stage of each against its own last ${numSteps} steps`
      : "stage times not yet (they need 3 closed steps)";
  return {
    level: "good",
    title: "No problem seen",
    detail:
      `Checked: ${run.ranks.length} ranks for life, ${times}, ${count(run.scalars.length)} scalars for NaN, ` +
      `${count(agent.num_segments)} segments for loss and damage.`,
  };
}

function stepsOf(run, rank) {
  return run.steps.filter((row) => row.role === rank.role).length;
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

const SIGNS = { bad: "✕", warn: "▲", note: "i", good: "✓" };

/** Renders the lines; updated in place so that ticking seconds do not rebuild the list. */
export class VerdictStrip {
  constructor() {
    this.node = document.getElementById("verdicts");
    this.list = document.getElementById("verdict-list");
    this.summary = document.getElementById("verdicts-summary");
    this.rows = new Map();
  }

  update(snapshot, run, feed) {
    const isLost = feed.state === "lost";
    const lines = isLost ? [unreachable(snapshot)] : verdictsOf(snapshot, run, feed.nowSeconds());
    setHidden(this.node, !lines.length);
    reconcile(
      this.list,
      this.rows,
      lines.map((_, index) => index),
      makeRow,
    );
    lines.forEach((line, index) => fillRow(this.rows.get(index), line));
    const numProblems = lines.filter((line) => ["bad", "warn"].includes(line.level)).length;
    setText(this.summary, numProblems ? `${numProblems} problems seen` : "no problem seen");
  }
}

/** What the agent said before is no verdict on now. */
function unreachable(snapshot) {
  const at = new Date(snapshot.time_seconds * 1000).toLocaleTimeString("en-GB");
  return {
    level: "bad",
    title: "The agent cannot be reached",
    detail: `Everything below is as it was at ${at}. The job is not affected; this page reconnects by itself.`,
  };
}

function makeRow() {
  const sign = element("span", "sign");
  sign.setAttribute("aria-hidden", "true");
  const title = element("strong");
  const detail = element("span", "detail");
  return {
    node: element("li", "", {}, sign, element("p", "", {}, title, " ", detail)),
    sign,
    title,
    detail,
  };
}

function fillRow(row, line) {
  if (row.node.dataset.level !== line.level) row.node.dataset.level = line.level;
  setText(row.sign, SIGNS[line.level]);
  setText(row.title, line.title);
  setText(row.detail, line.detail);
}

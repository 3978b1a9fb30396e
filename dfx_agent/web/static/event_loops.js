// Event loops: how late callbacks ran in the last minute, which code blocked the loop, and the time of
// each phase of the latest step.

import { element, reconcile, setHidden, setText } from "./element.js";
import { duration, percent } from "./format.js";

const LATE_SHARE = 0.01;
const HOLDERS_SHOWN = 3;
const PHASES_SHOWN = 12;
const LEAST_LATE_SECONDS = 0.01;

export class EventLoopPanel {
  constructor() {
    this.node = document.getElementById("event-loops");
    this.body = document.getElementById("event-loop-rows");
    this.rows = new Map();
    this.phases = document.getElementById("loop-phases");
    this.phaseBody = document.getElementById("loop-phase-rows");
    this.phaseRows = new Map();
  }

  update(run) {
    const ranks = run.ranks.filter((rank) => rank.event_loop);
    setHidden(this.node, !ranks.length);
    const keys = ranks.map((rank) => `${rank.role}/${rank.rank}/${rank.pid}`);
    reconcile(this.body, this.rows, keys, () => new LoopLine());
    ranks.forEach((rank, index) => this.rows.get(keys[index]).update(rank));
    this.updatePhases(ranks.flatMap(phasesShown));
  }

  updatePhases(lines) {
    setHidden(this.phases, !lines.length);
    const keys = lines.map((line) => line.key);
    reconcile(this.phaseBody, this.phaseRows, keys, () => new PhaseLine());
    for (const line of lines) this.phaseRows.get(line.key).update(line);
  }
}

/** The longest phases of the latest step of one process, and the phases that blocked its event loop. */
function phasesShown(rank) {
  const step = rank.event_loop.last_step;
  if (!step || step.phases.every((phase) => !phase.name)) return [];
  const shown = step.phases.filter((phase, index) => index < PHASES_SHOWN || isLate(phase));
  return shown.map((phase, index) => ({
    key: `${rank.role}/${rank.rank}/${rank.pid}/${phase.name}`,
    title: index ? "" : `${rank.role} ${rank.rank}, step ${step.step}: ${duration(step.seconds)}`,
    phase,
  }));
}

function isLate(phase) {
  return (phase.late_seconds ?? 0) >= LEAST_LATE_SECONDS;
}

class PhaseLine {
  constructor() {
    this.title = element("th", "c-rank", { scope: "row" });
    this.name = element("td", "c-phase");
    this.took = element("td", "c-took num");
    this.held = element("td", "c-held num");
    this.holders = element("td", "c-holders");
    this.node = element("tr");
    this.node.append(this.title, this.name, this.took, this.held, this.holders);
  }

  update({ title, phase }) {
    const late = phase.late_seconds;
    setText(this.title, title);
    setText(this.name, phase.name || "not inside any stage");
    setText(this.took, duration(phase.seconds));
    setText(this.held, late === null || isLate(phase) ? duration(late) : "0 s");
    this.held.classList.toggle("warn", isLate(phase));
    setText(this.holders, isLate(phase) ? heldBy(phase.holders) : "");
  }
}

class LoopLine {
  constructor() {
    this.name = element("th", "c-rank");
    this.name.scope = "row";
    this.cells = ["p50", "p99", "max", "late"].map((kind) => element("td", `c-${kind} num`));
    this.holders = element("td", "c-holders");
    this.node = element("tr");
    this.node.append(this.name, ...this.cells, this.holders);
  }

  update(rank) {
    const { window, late_seconds: late, window_seconds: of, holders } = rank.event_loop;
    const share = of > 0 ? Math.min(1, late / of) : 0;
    setText(this.name, `${rank.role} ${rank.rank}`);
    const texts = [
      duration(window.p50_seconds),
      duration(window.p99_seconds),
      duration(window.max_seconds),
      percent(share),
    ];
    this.cells.forEach((cell, index) => setText(cell, texts[index]));
    this.cells[3].classList.toggle("warn", share > LATE_SHARE);
    setText(this.holders, heldBy(holders));
  }
}

/** `1.2 s in step > dumps (encoder.py)`, longest first; "" if no code blocked the loop. */
export function heldBy(holders) {
  const shown = holders.slice(0, HOLDERS_SHOWN);
  return shown.map((held) => `${duration(held.seconds)} in ${held.name}`).join(" · ");
}

// Event loops: how late each wakes, and what code held it in the last minute.

import { element, reconcile, setHidden, setText } from "./element.js";
import { duration, percent } from "./format.js";

const LATE_SHARE = 0.01;
const HOLDERS_SHOWN = 3;

export class EventLoopPanel {
  constructor() {
    this.node = document.getElementById("event-loops");
    this.body = document.getElementById("event-loop-rows");
    this.rows = new Map();
  }

  update(run) {
    const ranks = run.ranks.filter((rank) => rank.event_loop);
    setHidden(this.node, !ranks.length);
    const keys = ranks.map((rank) => `${rank.role}/${rank.rank}/${rank.pid}`);
    reconcile(this.body, this.rows, keys, () => new LoopLine());
    ranks.forEach((rank, index) => this.rows.get(keys[index]).update(rank));
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

/** `1.2 s in step > dumps (encoder.py)`, most first; empty where nobody held it. */
export function heldBy(holders) {
  const shown = holders.slice(0, HOLDERS_SHOWN);
  return shown.map((held) => `${duration(held.seconds)} in ${held.name}`).join(" · ");
}

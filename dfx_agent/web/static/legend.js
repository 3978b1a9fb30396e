// The colours that are in use, in the order of the bars.

import { element, reconcile } from "./element.js";
import { compareStages, paint } from "./palette.js";

export class Legend {
  constructor() {
    this.node = document.getElementById("legend");
    this.items = new Map();
  }

  update(run) {
    const splits = run.ranks.flatMap((rank) => [rank.current, rank.last]).filter(Boolean);
    splits.push(...run.steps.map((row) => row.mean));
    const stages = new Set(splits.flatMap((split) => Object.keys(split.stage_seconds)));
    const waits = new Set(splits.flatMap((split) => Object.keys(split.wait_seconds)));
    const keys = [...stages].sort(compareStages).map((name) => `stage:${name}`);
    keys.push(...[...waits].sort().map((name) => `wait:${name}`), "idle:idle");
    const isNew = keys.some((key) => !this.items.has(key)) || keys.length !== this.items.size;
    if (isNew) reconcile(this.node, this.items, keys, (key) => new LegendItem(key));
  }

  repaint() {
    for (const item of this.items.values()) item.repaint();
  }
}

class LegendItem {
  constructor(key) {
    const colon = key.indexOf(":");
    this.kind = key.slice(0, colon);
    this.name = key.slice(colon + 1);
    this.swatch = element("i", "swatch");
    const text = this.kind === "wait" ? `wait: ${this.name}` : this.name;
    this.node = element("li", "", {}, this.swatch, element("span", "", { textContent: text }));
    this.repaint();
  }

  repaint() {
    paint(this.swatch, this.kind, this.name);
  }
}

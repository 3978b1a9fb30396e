// A TimeSplit as a list of parts, in the order of all stacked bars of the page.

import { element } from "./element.js";
import { compareStages, paint } from "./palette.js";

/** Parts {kind, name, seconds, drawnSeconds}: stages, then waits, then idle. */
export function partsOf(split) {
  const stages = Object.entries(split.stage_seconds).sort(([one], [other]) => compareStages(one, other));
  const stageSum = stages.reduce((total, [, seconds]) => total + seconds, 0);
  // Overlapping stages sum to more than the active time, but the length of the bar is the wall time.
  const squeeze = stageSum > 0 ? split.active_seconds / stageSum : 1;
  const parts = stages.map(([name, seconds]) => part("stage", name, seconds, seconds * squeeze));
  for (const [kind, byStage] of Object.entries(split.wait_seconds).sort()) {
    parts.push(part("wait", kind, sum(Object.values(byStage))));
  }
  parts.push(part("idle", "idle", split.idle_seconds));
  return parts.filter((found) => found.seconds > 0);
}

function part(kind, name, seconds, drawnSeconds = seconds) {
  return { kind, name, seconds, drawnSeconds };
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

export function waitSeconds(split) {
  return sum(Object.values(split.wait_seconds).map((byStage) => sum(Object.values(byStage))));
}

/** One horizontal stacked bar, updated in place. */
export class SplitBar {
  constructor(className) {
    this.node = element("div", `split ${className}`);
    this.parts = [];
    this.pieces = new Map();
  }

  /** `scaleSeconds` is the time of the full width. */
  update(split, scaleSeconds) {
    this.show(split ? partsOf(split) : [], scaleSeconds);
  }

  /** The same for any parts {kind, name, drawnSeconds}. */
  show(parts, scaleSeconds) {
    this.parts = parts;
    const names = this.parts.map((shown) => `${shown.kind}:${shown.name}`);
    for (const [name, node] of this.pieces) {
      if (!names.includes(name)) {
        node.remove();
        this.pieces.delete(name);
      }
    }
    this.parts.forEach((shown, index) => {
      const node = this.pieces.get(names[index]) ?? this.addPiece(names[index], shown);
      if (this.node.children[index] !== node)
        this.node.insertBefore(node, this.node.children[index]);
      node.style.width = `${((100 * shown.drawnSeconds) / scaleSeconds).toFixed(3)}%`;
    });
  }

  repaint() {
    for (const [name, node] of this.pieces) paint(node, ...splitName(name));
  }

  addPiece(name, shown) {
    const node = element("i");
    paint(node, shown.kind, shown.name);
    this.pieces.set(name, node);
    this.node.append(node);
    return node;
  }
}

function splitName(name) {
  const colon = name.indexOf(":");
  return [name.slice(0, colon), name.slice(colon + 1)];
}

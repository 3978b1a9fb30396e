// The job at a glance: nodes x local ranks, one square per rank. The reader chooses the measure that
// colours the squares. A sign marks ranks that are blamed, dead, gone or of unknown state. Nodes with
// blamed ranks come first, then nodes with their peers.

import { element, reconcile, setHidden, setText } from "./element.js";
import { count } from "./format.js";
import { paint } from "./palette.js";
import { MeasureSwitch, measureColor, measureWords } from "./wall.js";

const MIN_RANKS = 17; // the table already shows all ranks of a smaller job on one node
const STATE_WORDS = {
  live: "live",
  exited: "exited",
  detached: "detached",
  died: "died",
  unknown: "state unknown",
};
const STATE_SIGNS = { live: "", exited: "", detached: "", died: "✕", unknown: "?" };
const BLAME_WORDS = { critical: "blamed", warning: "blamed", peer: "peer of a blamed rank" };
const BLAMES = ["critical", "warning", "peer", ""];
const byName = new Intl.Collator("en", { numeric: true }).compare;

export class JobGrid {
  /** Calls `onOpen(key)` with "ROLE/RANK" when the reader chooses a rank. */
  constructor(onOpen) {
    this.card = document.getElementById("job");
    this.body = document.getElementById("job-nodes");
    this.note = document.getElementById("job-note");
    this.nodes = new Map();
    this.measure = new MeasureSwitch(() => this.run && this.update(this.run, this.opened));
    this.body.addEventListener("click", (event) => {
      const cell = cellAt(event.target);
      if (cell) onOpen(cell.dataset.key);
    });
    this.body.addEventListener("keydown", (event) => this.walk(event));
  }

  /** `opened` has the keys of the chosen ranks. */
  update(run, opened) {
    this.run = run;
    this.opened = opened;
    const values = this.measure.update(run);
    const nodes = nodesOf(run.places);
    setHidden(this.card, run.places.length < MIN_RANKS && nodes.length < 2);
    if (this.card.hidden) return;
    const names = nodes.map((node) => node.name);
    reconcile(this.body, this.nodes, names, () => new NodeLine());
    for (const node of nodes) this.nodes.get(node.name).update(node, opened, this.measure.name, values);
    setText(this.note, noteOf(run.places, nodes.length));
    this.keepOneInTabOrder();
  }

  repaint() {
    for (const node of this.nodes.values()) node.repaint();
  }

  /** Tab reaches only one square; the arrow keys move between the squares. */
  keepOneInTabOrder() {
    if (this.body.querySelector('[tabindex="0"]')) return;
    const first = this.body.querySelector("button");
    if (first) first.tabIndex = 0;
  }

  walk(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    const cell = cellAt(event.target);
    if (!cell || !(event.key in steps || event.key === "ArrowUp" || event.key === "ArrowDown")) return;
    event.preventDefault();
    const cells = [...this.body.querySelectorAll("button")];
    const here = cells.indexOf(cell);
    const there = event.key in steps ? here + steps[event.key] : besides(cells, here, event.key);
    const next = cells[Math.min(Math.max(there, 0), cells.length - 1)];
    cell.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }
}

/** The square above or below: the nearest in the next row of squares. */
function besides(cells, here, key) {
  const at = cells[here].getBoundingClientRect();
  const way = key === "ArrowDown" ? 1 : -1;
  let best = here;
  let least = Infinity;
  cells.forEach((cell, index) => {
    const box = cell.getBoundingClientRect();
    const down = way * (box.top - at.top);
    const distance = 4 * down + Math.abs(box.left - at.left);
    if (down > 1 && distance < least) [best, least] = [index, distance];
  });
  return best;
}

function cellAt(target) {
  return target instanceof Element ? target.closest("button") : null;
}

/** Nodes {name, places}, the worst first, then by name; pure. */
export function nodesOf(places) {
  const byNode = new Map();
  for (const place of places) {
    const known = byNode.get(place.node);
    if (known) known.push(place);
    else byNode.set(place.node, [place]);
  }
  const nodes = [...byNode].map(([name, rows]) => ({
    name,
    places: rows.sort(byLocalRank),
    worst: Math.min(...rows.map(badness)),
  }));
  return nodes.sort((one, other) => one.worst - other.worst || byName(one.name, other.name));
}

function byLocalRank(a, b) {
  return (
    byName(a.role, b.role) ||
    (a.local_rank ?? Infinity) - (b.local_rank ?? Infinity) ||
    byName(a.rank, b.rank)
  );
}

/** 0 for the most severe blame, 4 for a rank without a problem. */
function badness(place) {
  const blame = BLAMES.indexOf(place.blame);
  if (place.state === "died") return Math.min(blame, 2);
  return blame < 2 ? blame : blame + 1;
}

function noteOf(places, numNodes) {
  const number = (words, is) => {
    const found = places.filter(is).length;
    return found ? `${count(found)} ${words}` : "";
  };
  return [
    `${count(places.length)} ranks on ${numNodes === 1 ? "1 node" : `${count(numNodes)} nodes`}`,
    number("▲ blamed", (place) => place.blame === "critical" || place.blame === "warning"),
    number("✕ died", (place) => place.state === "died"),
    number("exited", (place) => place.state === "exited"),
    number("detached", (place) => place.state === "detached"),
    number("? state unknown", (place) => place.state === "unknown"),
  ]
    .filter(Boolean)
    .join(" · ");
}

/** "actor rank 9 on node-01, local rank 1: live, blamed, step 4, backward"; pure. */
export function wordsOf(place) {
  const local = place.local_rank === null ? "" : `, local rank ${place.local_rank}`;
  const part = Object.entries(place.place)
    .map(([axis, number]) => `, ${axis} ${number}`)
    .join("");
  const now = place.kind === "wait" ? `waits: ${place.now}` : place.now;
  const parts = [
    STATE_WORDS[place.state],
    BLAME_WORDS[place.blame],
    place.step === null ? "" : `step ${place.step}`,
    now || "between stages",
  ];
  const role = place.role ? `${place.role} ` : "";
  return `${role}rank ${place.rank} on ${place.node}${local}${part}: ${parts.filter(Boolean).join(", ")}`;
}

class NodeLine {
  constructor() {
    this.name = element("span", "node-name");
    this.cells = element("div", "cells");
    this.node = element("div", "node", {}, this.name, this.cells);
    this.node.setAttribute("role", "group");
    this.known = new Map();
  }

  update({ name, places }, opened, measure, values) {
    setText(this.name, name);
    if (this.name.title !== name) this.name.title = name;
    const label = `${name}: ${places.length} ranks`;
    if (this.node.ariaLabel !== label) this.node.ariaLabel = label;
    const keys = places.map((place) => `${place.role}/${place.rank}`);
    reconcile(this.cells, this.known, keys, (key) => new Cell(key));
    places.forEach((place, index) => {
      const value = values.get(place) ?? null;
      this.known.get(keys[index]).update(place, opened, measure, value);
    });
  }

  repaint() {
    for (const cell of this.known.values()) cell.repaint();
  }
}

class Cell {
  constructor(key) {
    this.node = element("button", "cell", { type: "button", tabIndex: -1 });
    this.node.dataset.key = this.node.dataset.rank = key;
    this.place = null;
    this.wasOpen = null;
  }

  /** Skips unchanged ranks: an unchanged `place` is the same object as before. */
  update(place, opened, measure, value) {
    const isOpen = opened.has(this.node.dataset.key);
    const isSame = measure === this.measure && value === this.value;
    if (place === this.place && isOpen === this.wasOpen && isSame) return;
    const before = this.place;
    this.place = place;
    this.wasOpen = isOpen;
    this.measure = measure;
    this.value = value;
    const words = [wordsOf(place), measureWords(measure, value)].filter(Boolean).join(", ");
    if (this.node.title !== words) this.node.title = this.node.ariaLabel = words;
    this.node.setAttribute("aria-pressed", String(isOpen));
    this.node.dataset.state = place.state;
    this.node.dataset.blame = place.blame;
    const isBlamed = place.blame === "critical" || place.blame === "warning";
    setText(this.node, STATE_SIGNS[place.state] || (isBlamed ? "▲" : ""));
    const isMoved = before?.kind !== place.kind || before?.now !== place.now;
    if (isMoved || before?.state !== place.state || !isSame) this.repaint();
  }

  repaint() {
    const { kind, now, state } = this.place;
    if (state !== "live" && state !== "unknown") this.node.style.background = "";
    else if (this.measure !== "now") this.node.style.background = measureColor(this.measure, this.value);
    else if (kind === "collective") paint(this.node, "wait", "collective");
    else paint(this.node, kind, now);
  }
}

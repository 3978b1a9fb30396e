// One colour per stage and one hatching per wait kind, the same on the full page.
// Stage colours were searched so that stages which follow each other stay at least 0.12 apart in
// OKLab (all pairs 0.057), also as seen with protanopia and deuteranopia.

import { onThemeChange, themeColors } from "./theme.js";

const STAGES = new Map([
  ["rollout", "#597cdf"],
  ["reward", "#dbc81c"],
  ["old_logprob", "#378f90"],
  ["ref_logprob", "#86e6d5"],
  ["values", "#a1ae03"],
  ["advantage", "#b798c1"],
  ["actor_update", "#d26742"],
  ["forward", "#ebcb91"],
  ["backward", "#c1470d"],
  ["optimizer", "#995670"],
  ["communication", "#aea17e"],
  ["critic_update", "#9549a8"],
  ["weight_sync", "#58d2fc"],
  ["offload", "#99a1fe"],
  ["validation", "#cf608e"],
  ["checkpoint", "#c6b2a2"],
]);

// Ink and direction of the hatching: "/", "\", "|", "-", "x" (both diagonals) or "." (dots).
const WAITS = new Map([
  ["barrier", ["#e0787c", "/"]],
  ["collective", ["#dca443", "\\"]],
  ["sync_coordination", ["#e0787c", "x"]],
  ["collector", ["#6fa8e8", "/"]],
  ["replay_batch", ["#6fa8e8", "\\"]],
  ["policy", ["#5fb98c", "|"]],
  ["queue", ["#5fb98c", "-"]],
  ["logger", ["#9a93a8", "."]],
  ["remote", ["#4fb0b8", "/"]],
]);

// Parts of a collective's blocked time: waiting for others is hatched, moving bytes is solid.
const HATCHED_PARTS = new Map([
  ["peers", ["#dca443", "\\"]],
  ["unmatched", ["#9a93a8", "."]],
]);
const SOLID_PARTS = new Map([["transfer", "#aea17e"]]);

const TILE_PX = 7;
const TILE_SCALE = 2;
const order = [...STAGES.keys()];
const tiles = new Map();
const patterns = new Map();
onThemeChange(() => {
  tiles.clear();
  patterns.clear();
});

/** Canonical stages in the order of a step, unknown ones after them by name. */
export function compareStages(one, other) {
  const rank = (name) => (STAGES.has(name) ? order.indexOf(name) : order.length);
  return rank(one) - rank(other) || (one < other ? -1 : 1);
}

/** The stage's colour; an unknown stage has a constant colour, computed from its name. */
export function stageColor(name) {
  return STAGES.get(name) ?? `hsl(${hash(name) % 360} 38% ${52 + ((hash(name) >> 9) % 18)}%)`;
}

function waitInk(kind) {
  return WAITS.get(kind) ?? [`hsl(${hash(kind) % 360} 40% 62%)`, "/"];
}

function hash(text) {
  let sum = 2166136261;
  for (const letter of text) sum = Math.imul(sum ^ letter.codePointAt(0), 16777619) >>> 0;
  return sum;
}

/** A canvas fill for (kind, name); kind is "stage", "wait" or "idle". */
export function canvasFill(context, kind, name) {
  if (kind === "stage") return stageColor(name);
  if (kind === "idle") return themeColors().idle;
  if (!patterns.has(name)) {
    const pattern = context.createPattern(tile(name).canvas, "repeat");
    pattern.setTransform(new DOMMatrix().scale(1 / TILE_SCALE));
    patterns.set(name, pattern);
  }
  return patterns.get(name);
}

/** The same fill as the CSS background of a node; `kind` may also be "part" (of a collective). */
export function paint(node, kind, name) {
  const ink = kind === "part" ? HATCHED_PARTS.get(name) : null;
  const solid = kind === "part" ? SOLID_PARTS.get(name) : null;
  if (kind === "wait" || ink) {
    const { url } = ink ? tile(`part:${name}`, ink) : tile(name);
    node.style.background = `url(${url}) 0 0 / ${TILE_PX}px ${TILE_PX}px`;
  } else {
    node.style.background = kind === "idle" ? "var(--idle)" : (solid ?? stageColor(name));
  }
}

/** The colour for (kind, name) in a tinted chip. */
export function inkOf(kind, name) {
  if (kind === "wait") return waitInk(name)[0];
  return kind === "idle" ? "var(--quiet)" : stageColor(name);
}

function tile(key, ink = waitInk(key)) {
  if (!tiles.has(key)) {
    const canvas = drawTile(...ink);
    tiles.set(key, { canvas, url: canvas.toDataURL() });
  }
  return tiles.get(key);
}

function drawTile(ink, direction) {
  const size = TILE_PX * TILE_SCALE;
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = size;
  const context = canvas.getContext("2d");
  context.fillStyle = themeColors().hatch;
  context.fillRect(0, 0, size, size);
  context.strokeStyle = context.fillStyle = ink;
  context.lineWidth = size * 0.26;
  for (const [x0, y0, x1, y1] of strokes(direction, size)) {
    context.beginPath();
    context.moveTo(x0, y0);
    context.lineTo(x1, y1);
    context.stroke();
  }
  if (direction === ".") context.fillRect(size * 0.3, size * 0.3, size * 0.4, size * 0.4);
  return canvas;
}

/** Lines that connect when the tile is repeated. */
function strokes(direction, size) {
  const half = size / 2;
  const starts = [-size, 0, size].map((left) => left - half);
  const up = starts.map((left) => [left, size + half, left + 2 * size, -half]);
  const down = starts.map((left) => [left, -half, left + 2 * size, size + half]);
  const both = {
    "/": up,
    "\\": down,
    x: [...up, ...down],
    "|": [[half, 0, half, size]],
    "-": [[0, half, size, half]],
  };
  return both[direction] ?? [];
}

// The distribution of scores by data source: one strip per source, one cell per range of scores.

import { setHidden, setText } from "./element.js";
import { count, percent, scalar } from "./format.js";
import { drawText, prepareSurface } from "./surface.js";
import { parseColor, themeColors } from "./theme.js";
import { hideTooltip, showTooltip } from "./tooltip.js";

const LEFT_PX = 118;
const ROW_PX = 22;
const BOTTOM_PX = 20;
const MOST_SOURCES = 12;
const MOST_NAME = 16;
const LABEL_PX = 44;

/** {edges, rows} of the ranges that any source uses; the largest source is first. Pure. */
export function stripsOf(scores) {
  const shown = [...scores].sort((one, other) => sum(other.counts) - sum(one.counts)).slice(0, MOST_SOURCES);
  const used = shown.flatMap(({ counts }) => counts.flatMap((number, index) => (number > 0 ? [index] : [])));
  if (!used.length) return { cells: [], rows: [] };
  const [first, last] = [Math.min(...used), Math.max(...used)];
  const { edges } = shown[0];
  const indices = Array.from({ length: last - first + 1 }, (_, index) => first + index);
  const cells = indices.map((index) => ({ low: edges[index - 1] ?? -Infinity, high: edges[index] ?? Infinity }));
  const rows = shown.map(({ source, counts }) => ({
    source: source || "all samples",
    total: sum(counts),
    shares: indices.map((index) => counts[index] / (sum(counts) || 1)),
  }));
  return { cells, rows };
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

export class ScoreStrips {
  constructor() {
    this.figure = document.getElementById("scores-figure");
    this.canvas = document.getElementById("scores");
    this.says = document.getElementById("scores-say");
    this.canvas.addEventListener("mousemove", (event) => this.explain(event));
    this.canvas.addEventListener("mouseleave", hideTooltip);
  }

  update(run) {
    this.strips = stripsOf(run.scores ?? []);
    setHidden(this.figure, !this.strips.rows.length);
    const shown = JSON.stringify([this.canvas.clientWidth, this.strips]);
    if (shown === this.shown || !this.strips.rows.length) return;
    this.shown = shown;
    this.draw();
  }

  repaint() {
    if (this.strips?.rows.length) this.draw();
  }

  draw() {
    const { cells, rows } = this.strips;
    if (!this.canvas.clientWidth) return;
    const context = prepareSurface(this.canvas, rows.length * ROW_PX + BOTTOM_PX);
    const colors = themeColors();
    this.width = (this.canvas.clientWidth - LEFT_PX - 8) / cells.length;
    rows.forEach((row, line) => {
      const most = Math.max(...row.shares);
      drawText(context, shortName(row.source), LEFT_PX - 8, (line + 0.5) * ROW_PX, colors.quiet, "right");
      row.shares.forEach((share, index) => {
        context.fillStyle = shadeOf(share / most, colors);
        context.fillRect(LEFT_PX + index * this.width + 0.5, line * ROW_PX + 2, this.width - 1, ROW_PX - 4);
      });
    });
    const every = Math.max(1, Math.ceil(LABEL_PX / this.width));
    cells.forEach(({ high }, index) => {
      if (!Number.isFinite(high) || index % every) return;
      const x = LEFT_PX + (index + 1) * this.width;
      drawText(context, scalar(high), x, rows.length * ROW_PX + 9, colors.quiet, "center");
    });
    setText(this.says, rows.map(spoken(cells)).join(" "));
  }

  explain(event) {
    if (!this.strips?.rows.length) return;
    const { cells, rows } = this.strips;
    const box = this.canvas.getBoundingClientRect();
    const row = rows[Math.floor((event.clientY - box.top) / ROW_PX)];
    const index = Math.floor((event.clientX - box.left - LEFT_PX) / this.width);
    if (!row || !cells[index]) {
      hideTooltip();
      return;
    }
    const detail = `${percent(row.shares[index])} of ${count(row.total)} samples`;
    showTooltip(event.clientX, event.clientY, `${row.source}: ${rangeText(cells[index])}`, detail);
  }
}

function spoken(cells) {
  return ({ source, shares }) => {
    const index = shares.indexOf(Math.max(...shares));
    return `${source}: most scores are ${rangeText(cells[index])}, ${percent(shares[index])}.`;
  };
}

function rangeText({ low, high }) {
  if (!Number.isFinite(low)) return `at most ${scalar(high)}`;
  return Number.isFinite(high) ? `above ${scalar(low)}, at most ${scalar(high)}` : `above ${scalar(low)}`;
}

function shortName(name) {
  return name.length > MOST_NAME ? `${name.slice(0, MOST_NAME - 1)}…` : name;
}

function shadeOf(share, colors) {
  const [even, much] = [parseColor(colors.idle), parseColor(colors.much)];
  return `rgb(${even.map((part, index) => Math.round(part + share * (much[index] - part))).join(" ")})`;
}

// Ranks × steps on one canvas: one scaled pixel per rank and step. Work and tokens are blue below and
// orange above the median of the step. Waits and idle time are violet.

import { setHidden, setText } from "./element.js";
import { count, duration } from "./format.js";
import { HeatmapData, orderOf, shadesOf } from "./heatmap_data.js";
import { onStep, pointAtStep } from "./step_cursor.js";
import { drawText, prepareSurface } from "./surface.js";
import { parseColor, themeColors } from "./theme.js";
import { hideTooltip, showTooltip } from "./tooltip.js";

const LEFT_PX = 64;
const BOTTOM_PX = 20;
const MIN_HEIGHT_PX = 60;
const MAX_HEIGHT_PX = 420;
const ROW_PX = 14;
const TICK_PX = 70;
const TWO_SIDED = new Set(["active", "tokens"]);
const MIN_RANKS = 2;

export class HeatmapPanel {
  /** Calls `onOpen(key, step)` with the key "ROLE/RANK" when the reader chooses a cell. */
  constructor(onOpen) {
    this.onOpen = onOpen;
    this.card = document.getElementById("heatmap");
    this.canvas = /** @type {HTMLCanvasElement} */ (document.getElementById("heatmap-canvas"));
    this.measure = /** @type {HTMLSelectElement} */ (document.getElementById("heatmap-measure"));
    this.order = /** @type {HTMLSelectElement} */ (document.getElementById("heatmap-order"));
    this.note = document.getElementById("heatmap-note");
    this.says = document.getElementById("heatmap-says");
    this.data = new HeatmapData(() => this.draw());
    this.pixels = document.createElement("canvas");
    this.cursor = null;
    onStep((step) => this.markStep(step));
    this.measure.addEventListener("change", () => this.run && this.data.update(this.run, this.measure.value));
    this.order.addEventListener("change", () => this.draw());
    this.canvas.addEventListener("mousemove", (event) => this.point(event));
    this.canvas.addEventListener("mouseleave", () => this.unpoint());
    this.canvas.addEventListener("blur", () => this.unpoint());
    this.canvas.addEventListener("click", () => this.choose());
    this.canvas.addEventListener("keydown", (event) => this.walk(event));
  }

  /** Fetches nothing while no view shows the card. */
  update(run, isInView) {
    this.run = run;
    setHidden(this.card, run.places.length < MIN_RANKS || !run.steps.length);
    if (this.card.hidden || !isInView) return;
    this.data.update(run, this.measure.value);
    if (this.width !== this.canvas.clientWidth) this.draw();
  }

  repaint() {
    this.draw();
  }

  draw() {
    const { steps, values, ranks } = this.data;
    this.width = this.canvas.clientWidth;
    if (!steps.length || !ranks.length || !this.width) return;
    this.rows = orderOf(values, ranks.length, this.order.value === "value");
    this.paintPixels();
    const height = Math.min(MAX_HEIGHT_PX, Math.max(MIN_HEIGHT_PX, ranks.length * ROW_PX));
    const context = prepareSurface(this.canvas, height + BOTTOM_PX);
    this.area = { width: this.width - LEFT_PX, height };
    context.imageSmoothingEnabled = false;
    context.drawImage(this.pixels, LEFT_PX, 0, this.area.width, height);
    this.paintAxes(context);
    if (this.cursor) this.paintCursor(context);
    else this.paintStep(context);
    setText(this.note, `${this.data.role} · ${count(ranks.length)} ranks, ${count(steps.length)} steps`);
  }

  paintPixels() {
    const { steps, values, ranks, measure } = this.data;
    const isTwoSided = TWO_SIDED.has(measure);
    const most = Math.max(0, ...values.map((row) => Math.max(0, ...row.map((value) => value ?? 0))));
    const colors = paletteOf(isTwoSided);
    this.pixels.width = steps.length;
    this.pixels.height = ranks.length;
    const context = this.pixels.getContext("2d");
    const image = context.createImageData(steps.length, ranks.length);
    values.forEach((row, column) => {
      const shades = shadesOf(row, isTwoSided, most);
      this.rows.forEach((rank, line) => {
        const shade = shades[rank] ?? null;
        if (shade === null) return; // no value: the card's background is visible
        const at = 4 * (line * steps.length + column);
        image.data.set(colors(shade), at);
      });
    });
    context.putImageData(image, 0, 0);
  }

  paintAxes(context) {
    const { steps, ranks } = this.data;
    const colors = themeColors();
    const cell = this.area.width / steps.length;
    const every = Math.max(1, Math.ceil(TICK_PX / cell));
    for (let index = 0; index < steps.length; index += every) {
      const label = index ? String(steps[index]) : `step ${steps[index]}`;
      drawText(context, label, LEFT_PX + index * cell, this.area.height + 11, colors.quiet);
    }
    const line = this.area.height / ranks.length;
    const apart = Math.max(1, Math.ceil(ROW_PX / line));
    for (let index = 0; index < ranks.length; index += apart) {
      const text = `rank ${ranks[this.rows[index]]}`;
      const y = Math.max(7, (index + 0.5) * line);
      if (index && y < ROW_PX + 7) continue; // it would overlap the first label
      drawText(context, text, LEFT_PX - 8, y, colors.quiet, "right");
    }
  }

  /** Marks a step that the reader points at in another chart. */
  markStep(step) {
    this.pointed = step;
    if (this.area && !this.card.hidden && !this.cursor) this.draw();
  }

  paintStep(context) {
    const column = this.data.steps.indexOf(this.pointed);
    const width = this.area.width / this.data.steps.length;
    context.strokeStyle = themeColors().text;
    if (column >= 0) context.strokeRect(LEFT_PX + column * width, 0, Math.max(2, width), this.area.height);
  }

  paintCursor(context) {
    const { steps, ranks } = this.data;
    const [width, height] = [this.area.width / steps.length, this.area.height / ranks.length];
    context.strokeStyle = themeColors().text;
    context.lineWidth = 1.5;
    context.strokeRect(LEFT_PX + this.cursor.column * width, this.cursor.line * height, Math.max(2, width), Math.max(2, height));
  }

  // Selects a cell with the mouse or the arrow keys.

  point(event) {
    if (!this.area) return;
    const { steps, ranks } = this.data;
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left - LEFT_PX) / this.area.width) * steps.length);
    const line = Math.floor(((event.clientY - box.top) / this.area.height) * ranks.length);
    const isInside = column >= 0 && column < steps.length && line >= 0 && line < ranks.length;
    if (isInside) this.explain(column, line, event.clientX, event.clientY);
    else this.unpoint();
  }

  explain(column, line, x, y) {
    const { steps, ranks, values, role, measure } = this.data;
    const isMoved = this.cursor?.column !== column || this.cursor?.line !== line;
    this.cursor = { column, line };
    const rank = this.rows[line];
    const value = values[column][rank] ?? null;
    const text = value === null ? "not known" : measure === "tokens" ? count(value) : duration(value);
    const where = `${role} rank ${ranks[rank]}, step ${steps[column]}`;
    showTooltip(x, y, where, `${measure}: ${text}`);
    if (isMoved) this.draw();
    pointAtStep(steps[column]);
    return `${where}: ${measure} ${text}`;
  }

  unpoint() {
    hideTooltip();
    if (!this.cursor) return;
    this.cursor = null;
    pointAtStep(null);
    this.draw();
  }

  choose() {
    if (!this.cursor) return;
    const { steps, ranks, role } = this.data;
    this.onOpen(`${role}/${ranks[this.rows[this.cursor.line]]}`, steps[this.cursor.column]);
  }

  walk(event) {
    if (event.key === "Escape") this.unpoint();
    if (event.key === "Enter") this.choose();
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (!moves[event.key] || !this.area) return;
    event.preventDefault();
    const { steps, ranks } = this.data;
    const [along, down] = moves[event.key];
    const from = this.cursor ?? { column: steps.length - 1 - along, line: -down };
    const column = Math.min(Math.max(from.column + along, 0), steps.length - 1);
    const line = Math.min(Math.max(from.line + down, 0), ranks.length - 1);
    const box = this.canvas.getBoundingClientRect();
    const x = box.left + LEFT_PX + (column * this.area.width) / steps.length;
    const y = box.top + ((line + 1) * this.area.height) / ranks.length;
    setText(this.says, this.explain(column, line, x, y));
  }
}

/** shade -> [red, green, blue, alpha] in the current theme. */
function paletteOf(isTwoSided) {
  const colors = themeColors();
  const even = parseColor(colors.idle);
  const [less, more] = isTwoSided
    ? [parseColor(colors.less), parseColor(colors.more)]
    : [even, parseColor(colors.much)];
  return (shade) => {
    const end = shade < 0 ? less : more;
    const share = Math.abs(shade);
    return [0, 1, 2].map((part) => even[part] + share * (end[part] - even[part])).concat(255);
  };
}

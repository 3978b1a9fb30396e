// Closed steps as stacked bars: where the time went, mean over the ranks of one role.

import { element, setHidden, setText } from "./element.js";
import { duration } from "./format.js";
import { canvasFill } from "./palette.js";
import { partsOf } from "./split.js";
import { onStep, pointAtStep } from "./step_cursor.js";
import { drawLine, drawText, niceStep, prepareSurface } from "./surface.js";
import { themeColors } from "./theme.js";
import { hideTooltip, partRows, showTooltip } from "./tooltip.js";

const LEFT_PX = 40;
const TOP_PX = 22;
const BOTTOM_PX = 22;
const MAX_BAR_PX = 34;
const MIN_BAR_PX = 10;
const MIN_HEIGHT_PX = 180;
const MAX_BARS = 40; // the snapshot has only the latest few steps; the page caches more

export class StepBars {
  /** Calls `onOpen(step)` when the reader chooses a bar. */
  constructor(onOpen) {
    this.canvas = document.getElementById("steps");
    this.select = /** @type {HTMLSelectElement} */ (document.getElementById("steps-role"));
    this.says = document.getElementById("walk-says");
    this.select.addEventListener("change", () => this.update(this.run));
    this.canvas.addEventListener("mousemove", (event) => this.point(event));
    this.canvas.addEventListener("mouseleave", () => this.unpoint());
    this.canvas.addEventListener("blur", () => this.unpoint());
    this.canvas.addEventListener("keydown", (event) => this.walk(event));
    this.canvas.addEventListener("click", () => this.shown?.[this.chosen] && onOpen(this.shown[this.chosen].step));
    onStep((step) => {
      this.pointed = step;
      this.isDirty = true;
    });
    this.bars = new Map();
    this.chosen = null;
    this.owner = "";
    this.version = "";
  }

  /** Adds bars only after a step has closed. */
  update(run) {
    this.run = run;
    const roles = [...new Set(run.steps.map((row) => row.role))].sort();
    if (this.roles !== roles.join()) this.offerRoles(roles);
    const role = this.select.value || roles[0];
    const rows = run.steps.filter((row) => row.role === role && row.num_ranks);
    const owner = JSON.stringify([run.run, run.attempt, role]);
    const version = `${owner} ${rows.at(-1)?.step} ${rows.length}`;
    if (version === this.version) return;
    if (owner !== this.owner) this.bars.clear();
    this.owner = owner;
    this.version = version;
    for (const row of rows) this.bars.set(row.step, barOf(row));
    for (const step of [...this.bars.keys()].slice(0, -MAX_BARS)) this.bars.delete(step);
    this.chosen = null;
    this.isDirty = true;
  }

  offerRoles(roles) {
    this.roles = roles.join();
    const before = this.select.value;
    this.select.replaceChildren(
      ...roles.map((role) => element("option", "", { value: role, textContent: role })),
    );
    if (roles.includes(before)) this.select.value = before;
    setHidden(this.select, roles.length < 2);
  }

  draw(heightPx) {
    const size = `${this.canvas.clientWidth}x${heightPx}`;
    if ((!this.isDirty && size === this.size) || !this.canvas.clientWidth) return;
    this.isDirty = false;
    this.size = size;
    const height = Math.max(heightPx, MIN_HEIGHT_PX);
    const context = prepareSurface(this.canvas, height);
    const colors = themeColors();
    if (!this.bars.size) {
      drawText(
        context,
        "no closed step yet",
        this.canvas.clientWidth / 2,
        height / 2,
        colors.quiet,
        "center",
      );
      return;
    }
    this.layout(height);
    this.paintAxis(context, colors);
    this.shown.forEach((bar, index) => this.paintBar(context, bar, index, colors));
  }

  layout(height) {
    const width = this.canvas.clientWidth - LEFT_PX - 6;
    this.shown = [...this.bars.values()].slice(-Math.max(1, Math.floor(width / MIN_BAR_PX)));
    this.pitch = Math.min(MAX_BAR_PX, width / this.shown.length);
    this.bottom = height - BOTTOM_PX;
    this.top = Math.max(...this.shown.map((bar) => bar.wallSeconds)) * 1.02 || 1;
    this.scale = (this.bottom - TOP_PX) / this.top;
  }

  paintAxis(context, colors) {
    const step = niceStep(this.top, 4);
    const right = this.canvas.clientWidth;
    for (let seconds = 0; seconds <= this.top; seconds += step) {
      const y = Math.round(this.bottom - seconds * this.scale) + 0.5;
      drawLine(context, LEFT_PX, y, right, y, colors.line);
      drawText(
        context,
        `${Number(seconds.toPrecision(3))} s`,
        LEFT_PX - 7,
        y,
        colors.quiet,
        "right",
      );
    }
    const every = niceStep(this.shown.length, Math.max(2, right / 70));
    this.shown.forEach((bar, index) => {
      if (bar.step % Math.max(1, Math.round(every)) !== 0) return;
      const x = LEFT_PX + (index + 0.5) * this.pitch;
      drawText(context, String(bar.step), x, this.bottom + 12, colors.quiet, "center");
    });
  }

  paintBar(context, bar, index, colors) {
    const x = LEFT_PX + index * this.pitch + 1.5;
    const width = this.pitch - 3;
    let y = this.bottom;
    for (const part of bar.parts) {
      const height = part.drawnSeconds * this.scale;
      context.fillStyle = canvasFill(context, part.kind, part.name);
      context.fillRect(x, y - height, width, height);
      y -= height;
    }
    if (bar.missing.length) drawText(context, "✕", x + width / 2, y - 7, colors.bad, "center");
    if (index !== this.chosen && bar.step !== this.pointed) return;
    context.strokeStyle = colors.text;
    context.lineWidth = 1.5;
    context.strokeRect(x - 1, y - 1, width + 2, this.bottom - y + 1);
  }

  point(event) {
    if (!this.shown) return;
    const box = this.canvas.getBoundingClientRect();
    const index = Math.floor((event.clientX - box.left - LEFT_PX) / this.pitch);
    if (this.shown[index]) this.choose(index, event.clientX, event.clientY);
    else this.unpoint();
  }

  choose(index, x, y) {
    if (index !== this.chosen) this.isDirty = true;
    this.chosen = index;
    const bar = this.shown[index];
    pointAtStep(bar.step);
    const missing = bar.missing.length ? `; without ${bar.missing.join(", ")}` : "";
    const detail = `${duration(bar.wallSeconds)}, mean of ${bar.numRanks} ranks${missing}`;
    showTooltip(x, y, `Step ${bar.step}`, detail, partRows(bar.parts, bar.wallSeconds));
    return `Step ${bar.step}: ${detail}`;
  }

  unpoint() {
    if (this.chosen !== null) this.isDirty = true;
    this.chosen = null;
    pointAtStep(null);
    hideTooltip();
  }

  walk(event) {
    if (event.key === "Escape") this.unpoint();
    const along = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!along || !this.shown) return;
    event.preventDefault();
    const from = this.chosen ?? this.shown.length - along;
    const index = Math.min(Math.max(from + along, 0), this.shown.length - 1);
    const box = this.canvas.getBoundingClientRect();
    const x = box.left + LEFT_PX + index * this.pitch;
    setText(this.says, this.choose(index, x, box.top + TOP_PX));
  }

  repaint() {
    this.isDirty = true;
  }
}

function barOf(row) {
  return {
    step: row.step,
    parts: partsOf(row.mean),
    wallSeconds: row.mean.wall_seconds,
    numRanks: row.num_ranks,
    missing: row.missing_ranks,
  };
}

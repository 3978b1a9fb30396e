// Host memory of the ranks over steps, with the limit and the extrapolation to it, on one scale.

import { setHidden, setText } from "./element.js";
import { getJson } from "./feed.js";
import { bytes, count } from "./format.js";
import { onStep, pointAtStep } from "./step_cursor.js";
import { drawLine, drawText, niceStep, prepareSurface } from "./surface.js";
import { themeColors } from "./theme.js";
import { hideTooltip, showTooltip } from "./tooltip.js";

const HEIGHT_PX = 180;
const LEFT_PX = 64;
const RIGHT_PX = 12;
const TOP_PX = 14;
const BOTTOM_PX = 22;
const LEAST_SLOPE_BYTES = 1 << 18; // a smaller growth per step is noise
const MOST_AHEAD = 2; // steps ahead, as a multiple of the known steps
const FAR_RATIO = 4; // a limit further above the curves than this is only named
const MOST_TOOLTIP_ROWS = 12;
const MOST_CURVES = 64;
const FETCH_MS = 3000;

/**
 * {first, last, until, top, limit, fullStep}: the axes for these curves. `until` is the last drawn step,
 * `fullStep` the step at which the fastest growth reaches the limit; null without both. Pure.
 */
export function axesOf(curves) {
  const steps = curves.flatMap((curve) => curve.steps);
  const [first, last] = [Math.min(...steps), Math.max(...steps)];
  const most = Math.max(...curves.flatMap((curve) => curve.values));
  const limits = curves.map((curve) => curve.limit).filter((limit) => limit !== null);
  const limit = limits.length ? Math.min(...limits) : null;
  const fullSteps = curves.map(fullStepOf).filter((step) => step !== null);
  const fullStep = fullSteps.length ? Math.min(...fullSteps) : null;
  const known = Math.max(last - first, 1);
  const until = fullStep === null ? last : Math.min(fullStep, last + MOST_AHEAD * known);
  const ahead = Math.max(most, ...curves.map((curve) => valueAt(curve, until)));
  const isNear = limit !== null && (limit <= FAR_RATIO * most || fullStep === until);
  return { first, last, until: Math.max(until, first + 1), top: (isNear ? limit : ahead) * 1.06, limit, fullStep, isNear };
}

/** The step at which a curve reaches its limit at its present growth; null for no growth or no limit. */
function fullStepOf({ steps, values, limit, slope }) {
  if (limit === null || slope === 0) return null;
  return steps.at(-1) + Math.max(0, limit - values.at(-1)) / slope;
}

function valueAt({ steps, values, slope }, step) {
  return values.at(-1) + slope * (step - steps.at(-1));
}

/**
 * The curves of the histories of an agent, with the growth of each rank. Ranks share the free memory: the
 * limit of a growing rank is what it has, and its part of what is free by its part of the growth. Pure.
 */
export function curvesOf(histories, ranks) {
  const slopes = new Map(ranks.map((rank) => [keyOf(rank), rank.host_memory?.slope_bytes_per_step ?? 0]));
  const growthOf = (row) => Math.max(0, slopes.get(keyOf(row)) ?? 0);
  const growthOfAll = histories.reduce((sum, row) => sum + growthOf(row), 0);
  return histories.map((row) => {
    const { steps, anonymous_bytes: values, free_bytes: free } = row;
    const growth = growthOf(row);
    const share = growth > 0 ? growth / growthOfAll : 1;
    const limit = free === null ? null : values.at(-1) + share * free;
    return { key: keyOf(row), steps, values, slope: growth < LEAST_SLOPE_BYTES ? 0 : growth, limit };
  });
}

function keyOf({ role, rank }) {
  return `${role}/${rank}`;
}

export class MemoryChart {
  constructor() {
    this.figure = document.getElementById("memory-figure");
    this.canvas = document.getElementById("memory-chart");
    this.note = document.getElementById("memory-chart-note");
    this.canvas.addEventListener("mousemove", (event) => this.explain(event));
    this.canvas.addEventListener("mouseleave", () => {
      pointAtStep(null);
      hideTooltip();
    });
    onStep((step) => this.markStep(step));
    this.histories = [];
    this.pointed = null;
    this.nextMs = -Infinity;
  }

  /** The chart is drawn with the next view. */
  async fetch(run) {
    this.nextMs = performance.now() + FETCH_MS;
    try {
      const histories = await getJson(`api/v1/runs/${encodeURIComponent(run)}/memory`);
      if (run === this.run) this.histories = histories.slice(0, MOST_CURVES);
    } catch {
      // the next fetch tries again
    }
  }

  /** Ranks in `blamed` ("ROLE/RANK") are drawn in a strong colour. */
  update(run, blamed) {
    if (run.run !== this.run) this.histories = [];
    this.run = run.run;
    this.blamed = blamed;
    if (performance.now() > this.nextMs) this.fetch(run.run);
    this.curves = curvesOf(this.histories, run.ranks);
    setHidden(this.figure, !this.curves.length);
    const shown = JSON.stringify([this.canvas.clientWidth, this.curves.map((curve) => [curve.key, curve.steps.at(-1)])]);
    if (!this.curves.length || !this.canvas.clientWidth || shown === this.shown) return;
    this.shown = shown;
    this.draw();
  }

  markStep(step) {
    this.pointed = step;
    if (this.axes && this.canvas.clientWidth) this.draw();
  }

  repaint() {
    if (this.axes && this.canvas.clientWidth) this.draw();
  }

  draw() {
    const context = prepareSurface(this.canvas, HEIGHT_PX);
    const colors = themeColors();
    this.axes = axesOf(this.curves);
    this.width = this.canvas.clientWidth - LEFT_PX - RIGHT_PX;
    this.paintAxes(context, colors);
    const order = [...this.curves].sort((one, other) => this.blamed.has(one.key) - this.blamed.has(other.key));
    for (const curve of order) this.paintCurve(context, curve, colors);
    this.paintLimit(context, colors);
    if (this.pointed !== null && this.pointed >= this.axes.first && this.pointed <= this.axes.last) {
      const x = this.x(this.pointed);
      drawLine(context, x, TOP_PX, x, HEIGHT_PX - BOTTOM_PX, colors.quiet);
    }
    setText(this.note, this.words());
  }

  x(step) {
    const { first, until } = this.axes;
    return LEFT_PX + (this.width * (step - first)) / (until - first);
  }

  y(value) {
    return HEIGHT_PX - BOTTOM_PX - ((HEIGHT_PX - BOTTOM_PX - TOP_PX) * value) / this.axes.top;
  }

  paintAxes(context, colors) {
    const { first, until, top } = this.axes;
    const tick = niceStep(top / 2 ** 20, 4) * 2 ** 20 || top;
    for (let value = 0; value <= top; value += tick) {
      const y = Math.round(this.y(value)) + 0.5;
      drawLine(context, LEFT_PX, y, LEFT_PX + this.width, y, colors.line);
      drawText(context, bytes(value), LEFT_PX - 7, y, colors.quiet, "right");
    }
    const every = Math.max(1, Math.ceil((until - first) / Math.max(2, this.width / 80)));
    for (let step = first; step <= until; step += every) {
      const text = step === first ? `step ${step}` : String(Math.round(step));
      drawText(context, text, this.x(step), HEIGHT_PX - 8, colors.quiet, step === first ? "left" : "center");
    }
  }

  paintCurve(context, curve, colors) {
    const isBlamed = this.blamed.has(curve.key);
    context.strokeStyle = isBlamed ? colors.bad : colors.accent;
    context.globalAlpha = isBlamed || !this.blamed.size ? 1 : 0.45;
    context.lineWidth = isBlamed ? 2.2 : 1.4;
    context.beginPath();
    curve.steps.forEach((step, index) => context.lineTo(this.x(step), this.y(curve.values[index])));
    context.stroke();
    const { until, last } = this.axes;
    if (until > last && curve.slope > 0) {
      context.setLineDash([5, 4]);
      context.beginPath();
      context.moveTo(this.x(curve.steps.at(-1)), this.y(curve.values.at(-1)));
      context.lineTo(this.x(until), this.y(valueAt(curve, until)));
      context.stroke();
      context.setLineDash([]);
    }
    context.globalAlpha = 1;
  }

  paintLimit(context, colors) {
    const { limit, isNear } = this.axes;
    if (!isNear) return;
    const y = Math.round(this.y(limit)) + 0.5;
    drawLine(context, LEFT_PX, y, LEFT_PX + this.width, y, colors.warn, 1.5);
    drawText(context, `limit ${bytes(limit)}`, LEFT_PX + this.width, y - 8, colors.warn, "right");
  }

  /** "The limit, 63 GiB, is above the chart", or when the memory is used up. */
  words() {
    const { limit, fullStep, isNear } = this.axes;
    if (fullStep !== null) return `at the present growth the memory is used up at step ${count(Math.floor(fullStep))}`;
    if (limit === null) return "the limit is not known";
    return isNear ? "" : `the limit, ${bytes(limit)}, is above the chart; nothing grows towards it`;
  }

  explain(event) {
    if (!this.axes) return;
    const left = this.canvas.getBoundingClientRect().left + LEFT_PX;
    const { first, until, last } = this.axes;
    const step = Math.round(first + ((event.clientX - left) / this.width) * (until - first));
    if (step < first) return;
    pointAtStep(step <= last ? step : null);
    const rows = this.curves.slice(0, MOST_TOOLTIP_ROWS).map((curve) => ({
      label: `rank ${curve.key.split("/").at(-1)}`,
      text: bytes(step > last ? valueAt(curve, step) : curve.values[nearest(curve.steps, step)]),
      strong: this.blamed.has(curve.key),
    }));
    showTooltip(event.clientX, event.clientY, `Step ${step}`, step > last ? "at the present growth" : "host memory", rows);
  }
}

function nearest(steps, step) {
  const index = steps.findIndex((other) => other >= step);
  return index < 0 ? steps.length - 1 : index;
}

// Symptoms over steps: one lane per family and direction, filled from the onset while active.

import { setText } from "./element.js";
import { drawLine, drawText, prepareSurface } from "./surface.js";
import { themeColors } from "./theme.js";
import { hideTooltip, showTooltip } from "./tooltip.js";

const LEFT_PX = 118;
const RIGHT_PX = 6;
const TOP_PX = 4;
const BOTTOM_PX = 22;
const LANE_PX = 20;
const BAR_PX = 12;
const TICK_PX = 76;

const FAMILIES = new Map([
  ["divergence", "KL"],
  ["grad_norm", "gradient norm"],
  ["entropy", "entropy"],
  ["reward", "reward"],
  ["length", "length"],
]);
const ARROWS = { up: "↑", down: "↓" };

export function familyText(family) {
  return FAMILIES.get(family) ?? family;
}

export class SymptomLanes {
  constructor() {
    this.canvas = document.getElementById("symptoms");
    this.says = document.getElementById("symptoms-say");
    this.canvas.addEventListener("mousemove", (event) => this.explain(event));
    this.canvas.addEventListener("mouseleave", hideTooltip);
    this.shown = "";
  }

  update(state, history) {
    this.state = state;
    this.history = history;
    this.lanes = state.symptoms.map((row) => ({
      ...row,
      name: `${familyText(row.symptom)} ${ARROWS[row.direction]}`,
      wasActive:
        history.symptoms.find(
          (past) => past.symptom === row.symptom && past.direction === row.direction,
        )?.is_active ?? [],
    }));
    setText(this.says, spoken(this.lanes));
    const size = this.canvas.clientWidth;
    const shown = JSON.stringify([size, state.row, history.steps.at(-1), this.lanes]);
    if (shown === this.shown || !size) return;
    this.shown = shown;
    this.draw();
  }

  repaint() {
    if (this.lanes) this.draw();
  }

  draw() {
    const height = TOP_PX + this.lanes.length * LANE_PX + BOTTOM_PX;
    const context = prepareSurface(this.canvas, height);
    const colors = themeColors();
    this.width = this.canvas.clientWidth - LEFT_PX - RIGHT_PX;
    this.lanes.forEach((lane, index) => this.drawLane(context, lane, index, colors));
    this.drawLatch(context, colors);
    this.drawSteps(context, height, colors);
  }

  /** Left edge of one step. */
  x(index) {
    return LEFT_PX + (this.width * index) / Math.max(1, this.history.steps.length);
  }

  drawLane(context, lane, index, colors) {
    const y = TOP_PX + index * LANE_PX + (LANE_PX - BAR_PX) / 2;
    const color = lane.is_active ? colors.text : colors.quiet;
    drawText(context, lane.name, LEFT_PX - 10, y + BAR_PX / 2, color, "right");
    context.fillStyle = colors.idle;
    context.fillRect(LEFT_PX, y, this.width, BAR_PX);
    context.fillStyle = colors.warn;
    for (const [from, to] of stretches(lane.wasActive)) {
      context.fillRect(this.x(from), y, Math.max(2, this.x(to) - this.x(from)), BAR_PX);
    }
    const onset = this.history.steps.indexOf(lane.onset_step);
    if (onset >= 0) drawLine(context, this.x(onset), y - 2, this.x(onset), y + BAR_PX + 2, colors.text, 2);
  }

  /** Draws a line under all lanes while the baselines are frozen. */
  drawLatch(context, colors) {
    const y = TOP_PX + this.lanes.length * LANE_PX + 2;
    context.fillStyle = colors.bad;
    for (const [from, to] of stretches(this.history.is_latched)) {
      context.fillRect(this.x(from), y, Math.max(2, this.x(to) - this.x(from)), 3);
    }
  }

  drawSteps(context, height, colors) {
    const { steps } = this.history;
    const every = Math.max(1, Math.ceil(steps.length / Math.max(1, this.width / TICK_PX)));
    for (let index = 0; index < steps.length; index += every) {
      const label = index ? String(steps[index]) : `step ${steps[index]}`;
      drawText(context, label, this.x(index), height - 8, colors.quiet);
    }
  }

  explain(event) {
    const box = this.canvas.getBoundingClientRect();
    const { steps, is_latched: latched } = this.history;
    const place = (event.clientX - box.left - LEFT_PX) / this.width;
    const index = Math.floor(place * steps.length);
    const lane = this.lanes[Math.floor((event.clientY - box.top - TOP_PX) / LANE_PX)];
    if (!lane || index < 0 || index >= steps.length) {
      hideTooltip();
      return;
    }
    const words = lane.wasActive[index] ? "active" : "quiet";
    const onset = lane.is_active && lane.onset_step !== null ? `began at step ${lane.onset_step}` : "";
    const frozen = latched[index] ? "baselines frozen" : "";
    const detail = [words, onset, frozen].filter(Boolean).join(" · ");
    showTooltip(event.clientX, event.clientY, `${lane.name}, step ${steps[index]}`, detail);
  }
}

/** [from, to) of each sequence of true values. */
function stretches(flags) {
  const found = [];
  flags.forEach((flag, index) => {
    if (!flag) return;
    if (found.at(-1)?.[1] === index) found.at(-1)[1] = index + 1;
    else found.push([index, index + 1]);
  });
  return found;
}

function spoken(lanes) {
  const active = lanes.filter((lane) => lane.is_active);
  if (!active.length) return "No symptom is active.";
  const words = active.map(
    (lane) =>
      `${familyText(lane.symptom)} ${lane.direction}${lane.onset_step === null ? "" : ` since step ${lane.onset_step}`}`,
  );
  return `Active symptoms: ${words.join(", ")}.`;
}

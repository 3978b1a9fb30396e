// The latest steps of every rank on one time axis whose right edge is now.

import { arrivalOf } from "./arrivals.js";
import { setText } from "./element.js";
import { axisSeconds, count, duration, shownWords } from "./format.js";
import { Lanes, lastEnd, NUM_STEPS } from "./lanes.js";
import { canvasFill } from "./palette.js";
import { tokensOf } from "./step_card.js";
import { pointAtStep } from "./step_cursor.js";
import { AXIS_FONT, drawLine, drawText, niceStep, prepareSurface } from "./surface.js";
import { themeColors } from "./theme.js";
import { StepTimes } from "./time_range.js";
import { TimelineControls } from "./timeline_controls.js";
import { hideTooltip, showTooltip } from "./tooltip.js";

const TOP_PX = 22;
const BOTTOM_PX = 22;
const LANES_PX = 300; // total height of the lanes; many lanes get thinner
const MIN_REDRAW_PX = 1.5;

/** The nodes whose timelines a hub could not fetch, and why: "without node-b: its agent …". */
export function unaskedWords(run, nodes) {
  const shown = new Set(run.ranks.map((rank) => rank.node));
  return nodes
    .filter((node) => node.timeline_problem && shown.has(node.node))
    .map((node) => `without ${node.node}: ${node.timeline_problem}`)
    .join(" · ");
}

export class Timeline {
  /** Calls `onOpen(key, step)` with the key "ROLE/RANK" when the reader chooses a piece. */
  constructor(onOpen) {
    this.onOpen = onOpen;
    this.canvas = document.getElementById("timeline");
    this.times = new StepTimes();
    this.fixed = null; // the range that the reader chose; null while the timeline follows now
    this.note = document.getElementById("timeline-note");
    this.says = document.getElementById("walk-says");
    this.lanes = new Lanes(() => {
      this.isDirty = true;
    });
    this.isDirty = true;
    this.cursor = null;
    this.marked = "";
    this.canvas.addEventListener("mousemove", (event) => this.point(event));
    this.canvas.addEventListener("mouseleave", () => this.unpoint());
    this.canvas.addEventListener("blur", () => this.unpoint());
    this.canvas.addEventListener("keydown", (event) => this.controls.key(event) || this.walk(event));
    this.controls = new TimelineControls(this);
  }

  /** `nodes` are the nodes that report to the hub; the hub fetches the timeline from them. */
  update(run, nodes) {
    this.run = run;
    this.unasked = unaskedWords(run, nodes);
    this.say();
    this.times.update(run.run, run.steps);
    const since = this.fixed?.begin ?? null;
    if (!this.lanes.update(run, this.view?.seconds ?? 0, nodes.length > 0, since)) return;
    this.unpoint();
    this.follow();
  }

  /** Shows a range of Unix times until `follow`. */
  show({ begin, end }) {
    this.fixed = { begin, end };
    this.isDirty = true;
    this.controls.say();
  }

  follow() {
    this.fixed = null;
    this.isDirty = true;
    this.controls.say();
  }

  /** The range that can be shown: from the first known step to the latest time that was drawn. */
  limits() {
    return this.times.limits(Math.max(this.nowSeconds, this.view?.end ?? 0));
  }

  secondsAt(clientX) {
    const left = this.canvas.getBoundingClientRect().left + this.view.left;
    return this.view.begin + (clientX - left) / this.view.scale;
  }

  /** The shown time range: eight typical steps, or one full step that lasts much longer. */
  window(lanes, now) {
    const rows = lanes.flatMap((lane) => lane.rows);
    const walls = rows
      .filter((row) => row.end_seconds !== null)
      .map((row) => row.end_seconds - row.begin_seconds)
      .sort((one, other) => one - other);
    const first = Math.min(...rows.map((row) => row.begin_seconds));
    const isLive = this.run.ranks.some((rank) => rank.state === "live");
    const end = isLive ? now : Math.max(...lanes.map(lastEnd));
    const typical = walls.length ? walls[walls.length >> 1] * NUM_STEPS : Infinity;
    const running = Math.max(
      0,
      ...rows.filter((row) => row.end_seconds === null).map((row) => end - row.begin_seconds),
    );
    this.nowSeconds = end;
    if (this.fixed) return { ...this.fixed, seconds: this.fixed.end - this.fixed.begin, isLive: false };
    const seconds = Math.min(Math.max(typical, running * 1.3), Math.max(end - first, 0.1));
    return { begin: end - seconds, end, seconds, isLive };
  }

  /** Called several times a second; draws only if the view moved by a visible amount. */
  draw(now) {
    const lanes = this.lanes.ordered();
    if (!lanes.length || !this.canvas.clientWidth) return;
    const window = this.window(lanes, now);
    const laneHeight = Math.min(34, Math.max(14, Math.floor(LANES_PX / lanes.length)));
    const left = 14 + Math.max(...lanes.map((lane) => this.labelOf(lane).length)) * 6.4;
    const right = this.canvas.clientWidth - 34;
    const scale = (right - left) / window.seconds;
    const moved = this.view ? Math.abs(window.end - this.view.end) * scale : Infinity;
    if (!this.isDirty && moved < MIN_REDRAW_PX && this.width === this.canvas.clientWidth) return;
    this.isDirty = false;
    this.width = this.canvas.clientWidth;
    this.view = { ...window, left, right, scale, laneHeight, lanes };
    this.paint(now);
  }

  paint(now) {
    const { view } = this;
    const { lanes, laneHeight } = view;
    const bottom = TOP_PX + lanes.length * laneHeight;
    const context = prepareSurface(this.canvas, bottom + BOTTOM_PX);
    const colors = themeColors();
    lanes.forEach((lane, index) => {
      const y = TOP_PX + index * laneHeight;
      const isMarked = lane.key === this.marked;
      const color = isMarked ? colors.accent : colors.quiet;
      drawText(context, this.labelOf(lane), view.left - 8, y + laneHeight / 2, color, "right");
      if (isMarked) drawLine(context, 2, y + 2, 2, y + laneHeight - 2, colors.accent, 3);
    });
    context.save();
    context.beginPath();
    context.rect(view.left, 0, view.right - view.left + 1, bottom + BOTTOM_PX);
    context.clip();
    lanes.forEach((lane, index) => this.paintLane(context, lane, TOP_PX + index * laneHeight, now));
    this.paintSteps(context, lanes, colors);
    context.restore();
    this.paintAxis(context, bottom, colors);
    this.paintCursor(context, colors);
    this.paintDeaths(context, colors);
    this.controls.paintMap();
    this.say();
  }

  /** Highlights the lane of this rank ("ROLE/RANK", "" for none). */
  mark(key) {
    if (key !== this.marked) this.isDirty = true;
    this.marked = key;
  }

  labelOf(lane) {
    return new Set([...this.lanes.ranks.values()].map((rank) => rank.role)).size > 1
      ? `${lane.role} ${lane.rank}`
      : `rank ${lane.rank}`;
  }

  x(seconds) {
    return this.view.left + (seconds - this.view.begin) * this.view.scale;
  }

  paintLane(context, lane, y, now) {
    const height = this.view.laneHeight - 4;
    for (const piece of this.lanes.piecesOf(lane, now, this.view.begin)) {
      if (piece.end_seconds < this.view.begin || piece.begin_seconds > this.view.end) continue;
      const x = this.x(piece.begin_seconds);
      context.fillStyle = canvasFill(context, piece.kind, piece.name);
      context.fillRect(x, y + 2, Math.max(0.6, this.x(piece.end_seconds) - x), height);
    }
  }

  paintSteps(context, lanes, colors) {
    lanes.forEach((lane, index) => {
      const y = TOP_PX + index * this.view.laneHeight;
      for (const row of lane.rows) {
        const x = Math.round(this.x(row.begin_seconds)) + 0.5;
        drawLine(context, x, y, x, y + this.view.laneHeight, colors.text, 1.5);
      }
    });
    this.paintStepNames(context, lanes[0].rows, colors);
  }

  /** Draws labels from the latest step backwards and omits labels that would overlap the next one. */
  paintStepNames(context, rows, colors) {
    let free = this.view.right;
    for (const row of [...rows].reverse()) {
      const x = Math.round(this.x(row.begin_seconds)) + 0.5;
      const text = `step ${row.step}`;
      context.font = AXIS_FONT;
      if (row.step === null || x < this.view.left - 1) continue;
      drawLine(context, x, 6, x, TOP_PX, colors.quiet);
      if (x + 10 + context.measureText(text).width > free) continue;
      drawText(context, text, x + 5, 11, colors.quiet);
      free = x;
    }
  }

  paintAxis(context, bottom, colors) {
    const { view } = this;
    const step = niceStep(view.seconds, Math.max(3, (view.right - view.left) / 110));
    for (let ago = step; ago < view.seconds; ago += step) {
      const x = Math.round(view.right - ago * view.scale) + 0.5;
      drawLine(context, x, bottom, x, bottom + 4, colors.line);
      const text = this.fixed ? clockText(view.end - ago, step) : `−${axisSeconds(ago)}`;
      drawText(context, text, x, bottom + 13, colors.quiet, "center");
    }
    if (this.fixed) return;
    const edge = Math.round(view.right) + 0.5;
    drawLine(
      context,
      edge,
      TOP_PX - 4,
      edge,
      bottom + 4,
      view.isLive ? colors.accent : colors.line,
      1.5,
    );
    drawText(context, view.isLive ? "now" : "end", edge, bottom + 13, colors.text, "center");
  }

  paintDeaths(context, colors) {
    this.view.lanes.forEach((lane, index) => {
      if (this.lanes.ranks.get(lane.key)?.state !== "died") return;
      const x = Math.min(Math.max(this.x(lastEnd(lane)), this.view.left), this.view.right - 54);
      const y = TOP_PX + (index + 0.5) * this.view.laneHeight;
      context.fillStyle = colors.surface;
      context.fillRect(x + 1, y - 8, 50, 16);
      drawText(context, "✕ died", x + 6, y, colors.bad);
    });
  }

  say() {
    const rows = this.lanes.ordered().flatMap((lane) => lane.rows);
    const omitted = rows.reduce((sum, row) => sum + row.num_omitted_pieces, 0);
    const words = omitted ? `${omitted} short pieces are not drawn` : "";
    const parts = [shownWords(this.run), words, this.unasked];
    setText(this.note, parts.filter(Boolean).join(" · "));
  }

  // Selects a piece with the mouse or the arrow keys.

  point(event) {
    if (!this.view) return;
    const box = this.canvas.getBoundingClientRect();
    const lane = Math.floor((event.clientY - box.top - TOP_PX) / this.view.laneHeight);
    const at = this.view.begin + (event.clientX - box.left - this.view.left) / this.view.scale;
    const pieces = this.view.lanes[lane] ? this.piecesOf(this.view.lanes[lane]) : [];
    const piece = pieces.find(({ begin_seconds: begin, end_seconds: end }) => begin <= at && at < end);
    if (!piece || at > this.view.end) {
      this.unpoint();
      return;
    }
    this.cursor = { lane, begin: piece.begin_seconds };
    this.explain(this.view.lanes[lane], piece, event.clientX, event.clientY);
  }

  unpoint() {
    if (this.cursor) this.isDirty = true;
    this.cursor = null;
    pointAtStep(null);
    hideTooltip();
  }

  /** Opens the rank and the step of the selected piece. */
  choose() {
    const lane = this.view?.lanes[this.cursor?.lane];
    const piece = lane && this.selected(lane);
    if (piece && piece.step !== null) this.onOpen(lane.key, piece.step);
  }

  piecesOf(lane) {
    return this.lanes.piecesOf(lane, this.nowSeconds, this.view.begin);
  }

  selected(lane) {
    return this.piecesOf(lane).find((piece) => piece.begin_seconds === this.cursor.begin);
  }

  explain(lane, piece, x, y) {
    const seconds = piece.end_seconds - piece.begin_seconds;
    const where = `${lane.role} rank ${lane.rank}${piece.step === null ? "" : `, step ${piece.step}`}`;
    const began = `began ${duration(this.nowSeconds - piece.begin_seconds)} ago`;
    const arrival = this.arrival(piece);
    const last = arrival ? `for ${this.labelOf(this.view.lanes[arrival.last])}, which arrived last` : "";
    pointAtStep(piece.step);
    showTooltip(x, y, where, [began, this.tokensOf(lane, piece.step), last].filter(Boolean).join(" · "), [
      { kind: piece.kind, name: piece.name, text: duration(seconds), strong: true },
    ]);
    this.isDirty = true;
    const name = `${piece.kind === "wait" ? "wait " : ""}${piece.name}`;
    return `${where}: ${[name, duration(seconds), last].filter(Boolean).join(", ")}`;
  }

  /** "512 tokens": of the latest closed step only, others are in the card of a step. */
  tokensOf(lane, step) {
    const rank = this.lanes.ranks.get(lane.key);
    if (!rank || rank.step === null || step !== rank.step - 1) return "";
    const total = tokensOf(rank);
    return total ? `${count(total)} tokens` : "";
  }

  arrival(piece) {
    return arrivalOf(piece, this.view.lanes.map((lane) => this.piecesOf(lane)));
  }

  walk(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (event.key === "Escape") this.unpoint();
    if (!moves[event.key] || !this.view) return;
    event.preventDefault();
    const [down, along] = moves[event.key];
    const { lanes } = this.view;
    const lane = Math.min(Math.max((this.cursor?.lane ?? 0) + down, 0), lanes.length - 1);
    const shown = this.piecesOf(lanes[lane]).filter(
      (piece) => piece.end_seconds > this.view.begin && piece.begin_seconds < this.view.end,
    );
    if (!shown.length) return;
    const at = this.cursor?.begin ?? Infinity;
    const here = Math.max(
      0,
      shown.findLastIndex((piece) => piece.begin_seconds <= at),
    );
    const piece = shown[Math.min(Math.max(here + (this.cursor ? along : 0), 0), shown.length - 1)];
    this.cursor = { lane, begin: piece.begin_seconds };
    const box = this.canvas.getBoundingClientRect();
    const x = box.left + Math.max(this.x(piece.begin_seconds), this.view.left);
    const y = box.top + TOP_PX + (lane + 0.7) * this.view.laneHeight;
    setText(this.says, this.explain(lanes[lane], piece, x, y));
  }

  paintCursor(context, colors) {
    const lane = this.view.lanes[this.cursor?.lane];
    const piece = lane && this.selected(lane);
    if (!piece) return;
    this.paintArrival(context, piece, colors);
    const x = Math.max(this.x(piece.begin_seconds), this.view.left);
    const y = TOP_PX + this.cursor.lane * this.view.laneHeight;
    context.strokeStyle = colors.text;
    context.lineWidth = 2;
    context.strokeRect(
      x,
      y + 1,
      Math.max(2, this.x(piece.end_seconds) - x),
      this.view.laneHeight - 2,
    );
  }
  /** Arrows from the rank that arrived last to the ranks that waited for it. */
  paintArrival(context, piece, colors) {
    const arrival = this.arrival(piece);
    if (!arrival) return;
    const x = Math.min(this.x(piece.end_seconds), this.view.right);
    const middle = (lane) => TOP_PX + (lane + 0.5) * this.view.laneHeight;
    for (const lane of arrival.waiting) {
      const toward = Math.sign(lane - arrival.last) * 5;
      drawLine(context, x, middle(arrival.last), x, middle(lane), colors.accent, 1.5);
      drawLine(context, x - 4, middle(lane) - toward, x, middle(lane), colors.accent, 1.5);
      drawLine(context, x + 4, middle(lane) - toward, x, middle(lane), colors.accent, 1.5);
    }
    context.fillStyle = colors.accent;
    context.fillRect(x - 3, middle(arrival.last) - 3, 6, 6);
  }
}

/** Time of day; with a fraction on an axis of less than a second per tick. */
function clockText(seconds, tickSeconds) {
  const time = new Date(seconds * 1000).toLocaleTimeString("en-GB");
  return tickSeconds < 1 ? `${time}${(seconds % 1).toFixed(2).slice(1)}` : time;
}

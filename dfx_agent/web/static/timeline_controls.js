// How the reader moves through the timeline: wheel, drag, keys, buttons, and the small map below.

import { setText } from "./element.js";
import { drawText, prepareSurface } from "./surface.js";
import { themeColors } from "./theme.js";
import { panned, zoomed } from "./time_range.js";

const ZOOM = 1.25;
const PAN_SHARE = 0.2;
const DRAG_PX = 4;
const MAP_PX = 26;

export class TimelineControls {
  constructor(timeline) {
    this.timeline = timeline;
    this.canvas = timeline.canvas;
    this.map = document.getElementById("timeline-map");
    this.button = document.getElementById("timeline-pause");
    this.drag = null;
    this.button.addEventListener("click", () => this.toggle());
    document.getElementById("timeline-in").addEventListener("click", () => this.zoom(1 / ZOOM ** 2));
    document.getElementById("timeline-out").addEventListener("click", () => this.zoom(ZOOM ** 2));
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.canvas.addEventListener("pointerdown", (event) => this.grab(event));
    this.canvas.addEventListener("pointermove", (event) => this.move(event));
    this.canvas.addEventListener("pointerup", () => this.release());
    this.map.addEventListener("pointerdown", (event) => this.jump(event));
    this.map.addEventListener("pointermove", (event) => event.buttons && this.jump(event));
  }

  toggle() {
    const { timeline } = this;
    if (timeline.fixed) timeline.follow();
    else if (timeline.view) timeline.show(timeline.view);
    this.say();
  }

  say() {
    setText(this.button, this.timeline.fixed ? "Back to now" : "Pause");
  }

  /** Zooms around `at`, by default around the middle. */
  zoom(factor, at = null) {
    const { view } = this.timeline;
    if (!view) return;
    const middle = at ?? (view.begin + view.end) / 2;
    this.timeline.show(zoomed(view, factor, middle, this.timeline.limits()));
  }

  pan(share) {
    const { view } = this.timeline;
    if (view) this.timeline.show(panned(view, share * view.seconds, this.timeline.limits()));
  }

  /** On the overview the page scrolls with the wheel, so there zooming needs Ctrl. */
  wheel(event) {
    if (document.body.dataset.view !== "timeline" && !event.ctrlKey) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(event.deltaX / this.canvas.clientWidth);
    else this.zoom(event.deltaY > 0 ? ZOOM : 1 / ZOOM, this.timeline.secondsAt(event.clientX));
  }

  grab(event) {
    if (event.button === 0) this.drag = { x: event.clientX, view: this.timeline.view, hasMoved: false };
  }

  move(event) {
    if (!this.drag?.view) return;
    const moved = this.drag.x - event.clientX;
    if (!this.drag.hasMoved && Math.abs(moved) < DRAG_PX) return;
    if (!this.drag.hasMoved) this.canvas.setPointerCapture(event.pointerId);
    this.drag.hasMoved = true;
    const { view } = this.drag;
    this.timeline.show(panned(view, moved / view.scale, this.timeline.limits()));
  }

  release() {
    if (this.drag && !this.drag.hasMoved) this.timeline.choose();
    this.drag = null;
  }

  /** Returns whether the key was one of these: + and − zoom, Shift and arrows pan, Space pauses, End follows. */
  key(event) {
    const actions = {
      "+": () => this.zoom(1 / ZOOM),
      "=": () => this.zoom(1 / ZOOM),
      "-": () => this.zoom(ZOOM),
      " ": () => this.toggle(),
      End: () => this.timeline.follow(),
      Enter: () => this.timeline.choose(),
    };
    if (event.shiftKey) {
      actions.ArrowLeft = () => this.pan(-PAN_SHARE);
      actions.ArrowRight = () => this.pan(PAN_SHARE);
    }
    const action = actions[event.key];
    if (!action) return false;
    event.preventDefault();
    action();
    return true;
  }

  // The map: all known steps, and the shown range.

  jump(event) {
    const { view } = this.timeline;
    if (!view) return;
    const limits = this.timeline.limits();
    const box = this.map.getBoundingClientRect();
    const at = limits.begin + ((event.clientX - box.left) / box.width) * (limits.end - limits.begin);
    this.timeline.show(panned(view, at - (view.begin + view.end) / 2, limits));
  }

  paintMap() {
    const width = this.map.clientWidth;
    if (!width) return;
    const limits = this.timeline.limits();
    const context = prepareSurface(this.map, MAP_PX);
    const colors = themeColors();
    const x = (seconds) => (width * (seconds - limits.begin)) / (limits.end - limits.begin);
    for (const [step, { begin, end }] of this.timeline.times.steps) {
      context.fillStyle = step % 2 ? colors.idle : colors.line;
      context.fillRect(x(begin), 6, Math.max(0.5, x(end) - x(begin)), MAP_PX - 12);
    }
    const { begin, end } = this.timeline.view;
    context.strokeStyle = colors.accent;
    context.lineWidth = 1.5;
    context.strokeRect(x(begin) + 1, 2, Math.max(3, x(end) - x(begin) - 2), MAP_PX - 4);
    const steps = [...this.timeline.times.steps.keys()];
    if (steps.length) drawText(context, `step ${Math.min(...steps)}`, 4, MAP_PX / 2, colors.quiet);
  }
}

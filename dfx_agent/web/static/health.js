// Training health: each signal with its baseline, and the symptoms that the alerts vote on.

import { element, reconcile, setHidden, setText } from "./element.js";
import { post } from "./feed.js";
import { count, scalar, signed } from "./format.js";
import { HealthHistory } from "./health_history.js";
import { ScoreStrips } from "./scores.js";
import { SymptomLanes, familyText } from "./symptom_lanes.js";

const SVG = "http://www.w3.org/2000/svg";
const SPARK_WIDTH = 168;
const SPARK_HEIGHT = 22;
const SPARK_STEPS = 64;
const BAND_Z = 2;
const CONFIRM_MS = 4000;

export class HealthPanel {
  constructor() {
    this.node = document.getElementById("health");
    this.body = document.getElementById("signal-rows");
    this.table = this.body.closest("table");
    this.note = document.getElementById("health-note");
    this.rows = new Map();
    this.lanes = new SymptomLanes();
    this.scores = new ScoreStrips();
    this.history = new HealthHistory(() => this.draw());
    this.reset = new ResetButton();
  }

  update(run, detector) {
    const state = run.signals;
    setHidden(this.node, !state);
    if (!state) return;
    this.run = run;
    this.detector = detector;
    this.history.update(run);
    this.reset.run = run.run;
    this.scores.update(run);
    setText(this.note, noteOf(run, detector));
    this.note.classList.toggle("bad", state.is_latched);
    const names = state.signals.map((row) => row.signal);
    reconcile(this.body, this.rows, names, (name) => new SignalLine(name));
    this.draw();
  }

  draw() {
    const { signals: state } = this.run;
    for (const row of state.signals) {
      const line = this.rows.get(row.signal);
      line.update(row, onsetOf(state, row.symptom), this.history.series(row.signal), this.detector);
    }
    this.lanes.update(state, this.history.rows);
  }

  repaint() {
    this.lanes.repaint();
    this.scores.repaint();
  }
}

/** "step 87, reward improving" or since when the baselines are frozen. */
function noteOf(run, detector) {
  const state = run.signals;
  const ready = state.signals.filter((row) => row.is_baseline_ready).length;
  const parts = [`step ${state.step}`];
  if (state.is_latched) parts.push(`baselines frozen since step ${state.latched_step}`);
  else parts.push(`${ready} of ${state.signals.length} baselines ready`);
  if (state.is_reward_improving) parts.push("reward improving");
  const odd = Object.entries(state.num_nonfinite_steps).filter(([, number]) => number > 0);
  parts.push(...odd.map(([where, number]) => `NaN or Inf in ${where} on ${number} of 5 steps`));
  const same = state.num_identical_score_steps ?? 0;
  if (same > 1) parts.push(`all scores equal for ${same} steps`);
  if (run.num_late_signals) parts.push(`${count(run.num_late_signals)} values arrived too late`);
  if (detector && !state.is_latched && state.row < detector.warm_steps) parts.push("warming up");
  return parts.join(" · ");
}

function onsetOf(state, family) {
  const active = state.symptoms.filter((row) => row.symptom === family && row.is_active);
  const onsets = active.map((row) => row.onset_step).filter((step) => step !== null);
  return onsets.length ? Math.min(...onsets) : null;
}

class SignalLine {
  constructor(name) {
    const cell = (className) => element("td", className);
    this.name = element("th", "c-signal", { scope: "row", textContent: name.replaceAll("_", " ") });
    this.family = cell("c-family quiet");
    this.value = cell("c-value num");
    this.band = cell("c-band num quiet");
    this.z = cell("c-z num");
    this.onset = cell("c-onset num");
    this.spark = document.createElementNS(SVG, "svg");
    this.spark.setAttribute("viewBox", `0 0 ${SPARK_WIDTH} ${SPARK_HEIGHT}`);
    this.spark.setAttribute("preserveAspectRatio", "none");
    this.spark.setAttribute("aria-hidden", "true");
    this.area = document.createElementNS(SVG, "path");
    this.area.setAttribute("class", "band");
    this.line = document.createElementNS(SVG, "path");
    this.spark.append(this.area, this.line);
    this.up = element("i", "up");
    this.down = element("i", "down");
    this.cusum = element("div", "cusum", { role: "img" }, this.down, this.up);
    this.node = element(
      "tr",
      "",
      {},
      this.name,
      this.family,
      element("td", "c-spark", {}, this.spark),
      this.value,
      this.band,
      this.z,
      element("td", "c-cusum", {}, this.cusum),
      this.onset,
    );
  }

  update(row, onset, series, detector) {
    const value = row.is_broken ? NaN : row.value === null ? null : Number(row.value);
    setText(this.family, familyText(row.symptom));
    setText(this.value, scalar(value));
    this.value.classList.toggle("bad", value !== null && !Number.isFinite(value));
    const parameters = detector?.signals.find((each) => each.signal === row.signal);
    setText(this.band, bandText(row, parameters?.least_value ?? null));
    this.band.title = row.is_baseline_ready ? "" : "not ready: the band is widened, or not known";
    this.node.classList.toggle("unready", !row.is_baseline_ready);
    setText(this.z, row.z === null ? "–" : signed(row.z, Math.abs(row.z) < 9.95 ? 1 : 0));
    this.z.classList.toggle("warn", Math.abs(row.z ?? 0) > BAND_Z);
    setText(this.onset, onset === null ? "" : `step ${onset}`);
    this.fillCusum(row, detector?.cusum_alarm ?? null);
    if (series) this.draw(series);
  }

  /** Two bars from the middle, full at the alarm. */
  fillCusum(row, alarm) {
    const share = (sum) => `${alarm ? Math.min(50, (50 * sum) / alarm) : 0}%`;
    this.up.style.width = share(row.cusum_up);
    this.down.style.width = share(row.cusum_down);
    const label = `CUSUM up ${row.cusum_up.toFixed(1)}, down ${row.cusum_down.toFixed(1)}, alarm above ${alarm}`;
    if (this.cusum.title !== label) this.cusum.title = this.cusum.ariaLabel = label;
  }

  draw(series) {
    const latest = (list) => list.slice(-SPARK_STEPS);
    const shape = [series.values, series.baseline_low, series.baseline_high].map(latest);
    const version = JSON.stringify(shape);
    if (version === this.version) return;
    this.version = version;
    const [line, area] = sparkPaths(...shape);
    this.line.setAttribute("d", line);
    this.area.setAttribute("d", area);
  }
}

/** The band in words. Values below `least` count as `least`, and a logarithm drops the sign. */
function bandText(row, least) {
  if (row.baseline_low === null || row.baseline_high === null) return "–";
  const end = (value) => scalar(Number(value.toPrecision(3)));
  if (least !== null && row.baseline_low <= least) return `at most ${end(row.baseline_high)}`;
  if (least !== null && row.value < 0) {
    return `size ${end(row.baseline_low)} … ${end(row.baseline_high)}`;
  }
  return `${end(row.baseline_low)} … ${end(row.baseline_high)}`;
}

/** [line of the values, area of the band] on one scale, with gaps for missing values. */
function sparkPaths(values, lows, highs) {
  const finite = [...values, ...lows, ...highs].filter(Number.isFinite);
  if (!finite.length) return ["", ""];
  const low = Math.min(...finite);
  const range = Math.max(...finite) - low;
  const x = (index) => ((index / Math.max(1, values.length - 1)) * SPARK_WIDTH).toFixed(1);
  const y = (value) =>
    (SPARK_HEIGHT - 2 - (range ? (value - low) / range : 0.5) * (SPARK_HEIGHT - 4)).toFixed(1);
  let isDown = false;
  const line = values.map((value, index) => {
    const isKnown = Number.isFinite(value);
    const command = isKnown ? `${isDown ? "L" : "M"}${x(index)} ${y(value)}` : "";
    isDown = isKnown;
    return command;
  });
  const banded = values.map((_, index) => index);
  const known = banded.filter((index) => Number.isFinite(lows[index]) && Number.isFinite(highs[index]));
  const top = known.map((i, place) => `${place ? "L" : "M"}${x(i)} ${y(highs[i])}`);
  const bottom = [...known].reverse().map((i) => `L${x(i)} ${y(lows[i])}`);
  return [line.join(""), known.length > 1 ? `${top.join("")}${bottom.join("")}Z` : ""];
}

/** Asks for confirmation: a reset discards the baselines that the detector has learned. */
class ResetButton {
  constructor() {
    this.node = document.getElementById("health-reset");
    this.run = "";
    this.node.addEventListener("click", () => this.press());
    this.say("Reset baselines");
  }

  say(text, isArmed = false) {
    setText(this.node, text);
    this.node.classList.toggle("armed", isArmed);
    this.isArmed = isArmed;
  }

  async press() {
    clearTimeout(this.timer);
    if (this.isArmed) {
      try {
        await post(`api/v1/runs/${encodeURIComponent(this.run)}/signals/reset`);
        this.say("Baselines reset");
      } catch {
        this.say("The agent refused");
      }
    } else {
      this.say("Use the present state as normal?", true);
    }
    this.timer = setTimeout(() => this.say("Reset baselines"), CONFIRM_MS);
  }
}

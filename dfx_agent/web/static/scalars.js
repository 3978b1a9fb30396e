// Every scalar without its own chart: name, a small line chart, value, unit, step.

import { element, reconcile, setHidden, setText } from "./element.js";
import { count, scalar, unitText } from "./format.js";
import { meanOf } from "./histories.js";

const SPARK_WIDTH = 72;
const SPARK_HEIGHT = 16;
const SPARK_POINTS = 60;
const SVG = "http://www.w3.org/2000/svg";

export class ScalarTable {
  constructor() {
    this.node = document.getElementById("scalars");
    this.note = document.getElementById("scalars-note");
    this.search = /** @type {HTMLInputElement} */ (document.getElementById("scalars-search"));
    this.rows = new Map();
    this.search.addEventListener("input", () => this.filter());
    document.addEventListener("keydown", (event) => this.shortcut(event));
  }

  /** `charted` has the keys that already have a chart. */
  update(run, histories, charted) {
    const scalars = run.scalars.filter((row) => !charted.has(row.key));
    scalars.sort((one, other) => (one.key < other.key ? -1 : 1));
    const known = this.rows.size;
    reconcile(
      this.node,
      this.rows,
      scalars.map((row) => row.key),
      (key) => new ScalarLine(key),
    );
    for (const row of scalars) this.rows.get(row.key).update(row, histories.get(row.key));
    if (known !== this.rows.size) this.filter();
    this.say();
  }

  filter() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const line of this.rows.values()) {
      setHidden(line.node, !words.every((word) => line.searchable.includes(word)));
    }
    this.say();
  }

  say() {
    const numShown = [...this.rows.values()].filter((line) => !line.node.hidden).length;
    const all = count(this.rows.size);
    setText(this.note, numShown === this.rows.size ? all : `${count(numShown)} of ${all}`);
  }

  shortcut(event) {
    const isTyping = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
    if (event.key === "/" && !isTyping) {
      event.preventDefault();
      this.search.focus();
    } else if (event.key === "Escape" && event.target === this.search) {
      this.search.value = "";
      this.filter();
      this.search.blur();
    }
  }
}

class ScalarLine {
  constructor(key) {
    const cell = (className) => element("span", className, { role: "cell" });
    this.searchable = key.toLowerCase();
    this.name = cell("scalar-name");
    this.value = cell("num");
    this.unit = cell("quiet scalar-unit");
    this.step = cell("quiet num scalar-step");
    this.spark = document.createElementNS(SVG, "svg");
    this.spark.setAttribute("viewBox", `0 0 ${SPARK_WIDTH} ${SPARK_HEIGHT}`);
    this.spark.setAttribute("aria-hidden", "true");
    this.line = document.createElementNS(SVG, "path");
    this.spark.append(this.line);
    this.node = element(
      "div",
      "scalar",
      { role: "row" },
      this.name,
      this.spark,
      this.value,
      this.unit,
      this.step,
    );
    setText(this.name, key);
  }

  update(row, history) {
    const value = meanOf(row);
    this.searchable = `${row.key} ${row.metric ?? ""}`.toLowerCase();
    setText(this.value, scalar(value));
    this.value.classList.toggle("bad", value !== null && !Number.isFinite(value));
    setText(this.unit, unitText(history?.unit));
    setText(this.step, row.step === null ? "" : `step ${row.step}`);
    const title = [row.key, row.metric ?? "no catalogue name", spread(row)]
      .filter(Boolean)
      .join("\n");
    if (this.node.title !== title) this.node.title = title;
    if (history && history.version !== this.version) {
      this.version = history.version;
      this.line.setAttribute("d", sparkPath(history.values.slice(-SPARK_POINTS)));
    }
  }
}

function spread(row) {
  const { count: num, min, max } = row.moments;
  return num > 1 ? `mean of ${num}: from ${scalar(Number(min))} to ${scalar(Number(max))}` : "";
}

/** A polyline over the values, with a gap for each value that is not finite. */
function sparkPath(values) {
  const finite = values.filter(Number.isFinite);
  if (finite.length < 2) return "";
  const low = Math.min(...finite);
  const range = Math.max(...finite) - low;
  const x = (index) => ((index / (values.length - 1)) * SPARK_WIDTH).toFixed(1);
  const y = (value) =>
    (SPARK_HEIGHT - 2 - (range ? (value - low) / range : 0.5) * (SPARK_HEIGHT - 4)).toFixed(1);
  let isDown = false;
  return values
    .map((value, index) => {
      const command = Number.isFinite(value) ? `${isDown ? "L" : "M"}${x(index)} ${y(value)}` : "";
      isDown = Number.isFinite(value);
      return command;
    })
    .join("");
}

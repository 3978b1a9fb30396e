// The measure that colours the squares of the ranks. Two-sided measures are blue below and orange above
// the median of the role: colour-blind people can distinguish these colours. Shares are grey to violet.

import { element, setHidden } from "./element.js";

/**
 * name -> [text of the button, description, whether it is relative to the median].
 * @type {Map<string, [string, string, boolean]>}
 */
const MEASURES = new Map([
  ["work", ["Work", "work in the last step", true]],
  ["wait", ["Wait", "waited in the last step", false]],
  ["memory", ["Memory", "memory in use", false]],
  ["tokens", ["Tokens", "tokens of the last step", true]],
  ["now", ["Now", "", false]],
]);
const FULL_RATIO = 1.5; // ratio to the median at which a two-sided colour is full
const NUM_SHADES = 10;

/** Distance from the median, -1 to 1: 0 at the median, 1 at 1.5 times the median. Pure. */
export function shadeOf(measure, value) {
  if (value === null) return null;
  const [, , isTwoSided] = MEASURES.get(measure);
  const place = isTwoSided ? Math.log(Math.max(value, 1e-6)) / Math.log(FULL_RATIO) : value;
  const bounded = Math.min(1, Math.max(isTwoSided ? -1 : 0, place));
  return Math.round(bounded * NUM_SHADES) / NUM_SHADES;
}

/** A CSS colour that follows the theme; "" for a rank without the value. */
export function measureColor(measure, value) {
  const shade = shadeOf(measure, value);
  if (shade === null) return "";
  const [, , isTwoSided] = MEASURES.get(measure);
  const end = isTwoSided ? (shade < 0 ? "--less" : "--more") : "--much";
  return `color-mix(in oklab, var(${end}) ${Math.round(100 * Math.abs(shade))}%, var(--idle))`;
}

/** "work in the last step 1.22 times the median". */
export function measureWords(measure, value) {
  const [, words, isTwoSided] = MEASURES.get(measure);
  if (!words || value === null) return "";
  return isTwoSided ? `${words} ${value} times the median` : `${words}: ${Math.round(100 * value)} %`;
}

export class MeasureSwitch {
  constructor(onChange) {
    this.node = document.getElementById("job-measure");
    this.scale = document.getElementById("job-scale");
    this.chosen = "work";
    this.name = "now";
    this.buttons = new Map();
    for (const [name, [text]] of MEASURES) {
      const button = element("button", "", { type: "button", textContent: text });
      button.setAttribute("role", "radio");
      button.addEventListener("click", () => {
        this.chosen = name;
        onChange();
      });
      button.addEventListener("keydown", (event) => this.walk(event));
      this.buttons.set(name, button);
      this.node.append(button);
    }
  }

  /** Map place -> value of the shown measure: the chosen one, or "now" if no rank has a value. */
  update(run) {
    const columns = run.wall ?? {};
    const has = (name) => name === "now" || columns[name]?.length === run.places.length;
    const isOther = this.name !== (has(this.chosen) ? this.chosen : "now");
    this.name = has(this.chosen) ? this.chosen : "now";
    for (const [name, button] of this.buttons) {
      setHidden(button, !has(name));
      const isChosen = name === this.name;
      if (button.getAttribute("aria-checked") !== String(isChosen)) {
        button.setAttribute("aria-checked", String(isChosen));
        button.tabIndex = isChosen ? 0 : -1;
      }
    }
    if (isOther || !this.scale.firstChild) this.explain();
    if (this.name === "now") return new Map();
    return new Map(run.places.map((place, index) => [place, columns[this.name][index]]));
  }

  explain() {
    const [, words, isTwoSided] = MEASURES.get(this.name);
    const bar = element("i");
    const from = isTwoSided ? "var(--less), var(--idle), var(--more)" : "var(--idle), var(--much)";
    bar.style.background = `linear-gradient(in oklab to right, ${from})`;
    const ends = isTwoSided ? ["⅔ of the median", "1½ times"] : ["0 %", "100 %"];
    setHidden(this.scale, !words);
    this.scale.replaceChildren(element("span", "", { textContent: ends[0] }), bar, ends[1]);
    this.scale.title = words;
  }

  /** The arrow keys select a measure, as in any group of radio buttons. */
  walk(event) {
    const along = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!along) return;
    event.preventDefault();
    const shown = [...this.buttons.values()].filter((button) => !button.hidden);
    const here = shown.indexOf(event.target);
    const next = shown[(here + along + shown.length) % shown.length];
    next.focus();
    next.click();
  }
}

// Scalars over steps, drawn by plotly. The script comes from plotly's Python wheel.

import { panelsFor, rowsFor } from "./chart_panels.js";
import { element, setHidden, setText } from "./element.js";
import { scalar, unitText } from "./format.js";
import { onThemeChange, themeColors } from "./theme.js";

const SERIES_COLORS = ["#597cdf", "#d26742", "#378f90", "#cf608e"];
const PLOT_HEIGHT_PX = 168;
const NARROW_PX = 260;
const MAX_NAME = 24;

const SHORT_NAMES = new Map([
  ["dfx_policy_kl_k1_nats", "policy"],
  ["dfx_ref_kl_nats", "ref"],
  ["actor/ppo_kl", "policy"],
  ["actor/kl_loss", "ref"],
]);

let plotlyLoading = null;

/** window.Plotly, or null if the wheel is not installed. Loaded on demand: the script has 5 MB. */
function loadPlotly() {
  plotlyLoading ??= new Promise((resolve) => {
    const script = element("script", "", { src: "static/plotly.min.js", async: true });
    script.addEventListener("load", () => resolve(window.Plotly ?? null));
    script.addEventListener("error", () => resolve(null));
    document.head.append(script);
  });
  return plotlyLoading;
}

export class Charts {
  constructor() {
    this.node = document.getElementById("charts");
    this.panels = null;
    this.charts = [];
    onThemeChange(() => this.charts.forEach((chart) => chart.plot()));
  }

  /** Returns the native keys that the charts show. */
  update(run, histories) {
    const panels = panelsFor(run.scalars, run.meant_keys);
    if (panels !== this.panels) {
      this.panels = panels;
      this.charts = panels.map((panel) => new Chart(panel));
      this.node.replaceChildren(...this.charts.map((chart) => chart.node));
      this.node.classList.toggle("three", panels.length === 3);
    }
    return new Set(this.charts.flatMap((chart) => chart.update(run, histories)));
  }
}

class Chart {
  constructor(panel) {
    this.panel = panel;
    this.unit = element("span", "quiet");
    this.key = element("code", "chart-key quiet");
    this.values = element("div", "chart-values");
    this.box = element("div", "plot");
    this.message = element("p", "absent quiet");
    const head = element(
      "div",
      "card-head",
      {},
      element("h2", "", { textContent: panel.title }),
      this.unit,
      this.key,
    );
    this.node = element("article", "card chart", {}, head, this.values, this.box, this.message);
    this.node.setAttribute("aria-label", panel.title);
    this.series = [];
    this.version = "";
  }

  update(run, histories) {
    const rows = rowsFor(this.panel, run.scalars, run.meant_keys);
    this.series = rows.map((row, index) => ({
      key: row.key,
      name: rows.length > 1 ? (SHORT_NAMES.get(row.metric ?? row.key) ?? row.key) : row.key,
      color: SERIES_COLORS[index],
      history: histories.get(row.key) ?? { unit: "", steps: [], values: [], version: 0 },
    }));
    const version = JSON.stringify([run.run, this.series.map((row) => [row.key, row.history.version])]);
    if (version !== this.version) {
      this.version = version;
      this.showValues();
      this.plot();
    }
    return rows.map((row) => row.key);
  }

  showValues() {
    this.values.classList.toggle("several", this.series.length > 1);
    const units = new Set(this.series.map((row) => unitText(row.history.unit)));
    units.delete(this.panel.title.toLowerCase());
    setText(this.unit, [...units].join(", "));
    setText(this.key, this.series.length === 1 ? this.series[0].key : "");
    this.key.title = this.key.textContent;
    this.values.replaceChildren(
      ...this.series.map((row) => {
        const value = row.history.values.at(-1) ?? null;
        const mark = element("i", "swatch");
        mark.style.background = row.color;
        const label =
          this.series.length > 1 ? element("span", "quiet", { textContent: row.name }) : "";
        const isBad = value !== null && !Number.isFinite(value);
        const number = element("strong", isBad ? "bad" : "", { textContent: scalar(value) });
        return element(
          "span",
          "chart-value",
          { title: row.key },
          this.series.length > 1 ? mark : "",
          number,
          label,
        );
      }),
    );
  }

  async plot() {
    const hasPoints = this.series.some((row) => row.history.values.length);
    setHidden(this.message, hasPoints);
    setHidden(this.box, !hasPoints);
    if (!hasPoints) {
      setText(this.message, this.series.length ? "no value yet" : "not reported by this run");
      return;
    }
    const Plotly = await loadPlotly();
    if (!Plotly) {
      setHidden(this.message, false);
      setHidden(this.box, true);
      setText(this.message, "charts need plotly on the agent's side: pip install plotly");
      return;
    }
    const isSplit = Boolean(this.panel.hasTwoScales) && this.series.length === 2;
    const traces = this.series.flatMap((row, index) => [
      lineOf(row, isSplit && index ? "y3" : "y"),
      marksOf(row),
    ]);
    const numTicks = this.box.clientWidth < NARROW_PX ? 3 : 6;
    await Plotly.react(this.box, traces, layoutOf(isSplit, flatRange(this.series), numTicks), {
      displayModeBar: false,
      responsive: true,
    });
  }
}

function lineOf(series, yaxis) {
  const { steps, values } = series.history;
  return {
    type: "scatter",
    mode: values.length > 1 ? "lines" : "markers",
    name: plainText(series.name),
    yaxis,
    x: steps,
    y: values.map((value) => (Number.isFinite(value) ? value : null)),
    line: { color: series.color, width: 1.8 },
    marker: { color: series.color, size: 6 },
    hovertemplate: "%{y:.4~g}<extra>%{fullData.name}</extra>",
  };
}

/**
 * NaN and infinity have no position on the axis, so they are crosses at its lower end. All other
 * steps have an invisible point; without it, the hover box would show the nearest cross there.
 */
function marksOf(series) {
  const { steps, values } = series.history;
  const points = steps.map((step, index) => ({
    step,
    value: values[index],
    odd: !Number.isFinite(values[index]),
  }));
  // Invisible points at the very ends would make plotly widen the axis.
  const shown = points.filter(({ odd }, index) => odd || (index > 0 && index < points.length - 1));
  return {
    type: "scatter",
    mode: "markers",
    name: plainText(series.name),
    x: shown.map(({ step }) => step),
    y: shown.map(() => 0.03),
    yaxis: "y2",
    text: shown.map(({ value }) => scalar(value)),
    hoverinfo: shown.map(({ odd }) => (odd ? "text+name" : "none")),
    marker: {
      color: themeColors().bad,
      size: 8,
      symbol: "x",
      opacity: shown.map(({ odd }) => Number(odd)),
    },
    visible: shown.some(({ odd }) => odd),
    cliponaxis: false,
  };
}

/** plotly interprets some HTML in names, and long names would cover the plot. */
function plainText(name) {
  const short = name.length > MAX_NAME ? `${name.slice(0, MAX_NAME - 1)}…` : name;
  return short.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** An axis range for a value that never changes (plotly would use -1 to 1); null for other values. */
function flatRange(series) {
  const values = series.flatMap((row) => row.history.values).filter(Number.isFinite);
  const [first] = values;
  if (!first || values.some((value) => value !== first)) return null;
  const reach = Math.abs(first) / 2;
  return [first - reach, first + reach];
}

/**
 * With `isSplit` the second line has its own scale on the right, in its colour. `range` is null if
 * plotly chooses the axis range.
 */
function layoutOf(isSplit, range, numTicks) {
  const colors = themeColors();
  const axis = {
    gridcolor: colors.line,
    linecolor: colors.line,
    zeroline: false,
    tickfont: { color: colors.quiet, size: 11 },
    automargin: false,
  };
  const ticks = (color) => ({ nticks: 5, exponentformat: "e", tickfont: { color, size: 11 } });
  return {
    height: PLOT_HEIGHT_PX,
    margin: { l: 46, r: isSplit ? 42 : 10, t: 8, b: 24 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: {
      family: 'system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif',
      color: colors.text,
    },
    showlegend: false,
    hovermode: "x unified",
    hoverlabel: {
      bgcolor: colors.surface,
      bordercolor: colors.line,
      font: { color: colors.text, size: 12 },
    },
    dragmode: "zoom",
    uirevision: "keep",
    xaxis: {
      ...axis,
      nticks: numTicks,
      tickangle: 0,
      hoverformat: "d",
      showgrid: false,
      showspikes: false,
      tickprefix: "step ",
      showtickprefix: "first",
      unifiedhovertitle: { text: "step %{x}" },
    },
    yaxis: {
      ...axis,
      ...ticks(isSplit ? SERIES_COLORS[0] : colors.quiet),
      ...(range ? { range } : { autorange: true }),
    },
    yaxis3: {
      ...axis,
      ...ticks(SERIES_COLORS[1]),
      tickmode: "auto",
      overlaying: "y",
      side: "right",
      showgrid: false,
    },
    yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
  };
}

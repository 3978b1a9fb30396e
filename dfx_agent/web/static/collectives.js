// Collectives of each rank: how long the rank waited for its peers, and how long for the transfer.

import { element, reconcile, setHidden, setText } from "./element.js";
import { bytes, count, duration, percent, shownWords } from "./format.js";
import { paint } from "./palette.js";
import { SplitBar } from "./split.js";
import { hideTooltip, showTooltip } from "./tooltip.js";

const PARTS = ["peers", "transfer", "unmatched"];
const PART_WORDS = {
  peers: "waiting for peers",
  transfer: "transfer",
  unmatched: "unmatched",
};
const DEVICE = "device"; // measured on the device's clock in a sample of steps: never added to host time
const FULL_COVERAGE = 0.95;
const MAX_TOOLTIP_ROWS = 12;

export class CollectivePanel {
  constructor() {
    this.node = document.getElementById("collectives");
    this.body = document.getElementById("collective-rows");
    this.note = document.getElementById("collectives-note");
    this.scale = document.getElementById("collectives-scale");
    this.rows = new Map();
    this.table = this.body.closest("table");
    this.swatches = PARTS.map((part) => [part, element("i", "swatch")]);
    for (const [part, swatch] of this.swatches) {
      this.table.querySelector(`thead .c-${part}`).prepend(swatch);
    }
    this.repaint();
  }

  update(run) {
    const ranks = run.ranks.filter((rank) => rank.collectives.length || rank.groups.length);
    setHidden(this.node, !ranks.length);
    if (!ranks.length) return;
    const keys = ranks.map((rank) => `${rank.role}/${rank.rank}/${rank.pid}`);
    reconcile(this.body, this.rows, keys, () => new CollectiveLine());
    const sums = ranks.map((rank) => sumOf(rowsOf(rank, false)));
    const longest = Math.max(...sums.map((sum) => sum.blockedSeconds), 0);
    const scale = longest || 1;
    const showsRole = new Set(run.ranks.map((rank) => rank.role)).size > 1;
    this.table.classList.toggle("shows-role", showsRole);
    ranks.forEach((rank, index) =>
      this.rows.get(keys[index]).update(rank, sums[index], scale, showsRole),
    );
    setText(this.scale, longest ? `Blocked · 0 to ${duration(longest)}` : "Blocked");
    this.sayCoverage(ranks, shownWords(run, " · "));
  }

  /** Says which share the guest sees: time in unseen collectives must not look like idle time. */
  sayCoverage(ranks, shown) {
    const seen = coverageOf(ranks.flatMap((rank) => rank.groups));
    const isPartial = seen !== null && seen < FULL_COVERAGE;
    this.note.classList.toggle("warn", isPartial);
    setText(
      this.note,
      (isPartial ? `collectives: partial, ${percent(seen)} seen` : "since the agent started") + shown,
    );
    this.note.title = isPartial
      ? "The groups counted more collectives than the guest saw. The guest does not see collectives of compiled graphs and functional collectives."
      : "";
  }

  repaint() {
    for (const [part, swatch] of this.swatches) paint(swatch, "part", part);
    for (const row of this.rows.values()) row.bar.repaint();
  }
}

/** Collectives seen / counted, over all groups; null if no group counts its collectives. */
function coverageOf(groups) {
  const counted = groups.filter((row) => row.coverage_ratio !== null && row.num_enqueued > 0);
  const total = counted.reduce((sum, row) => sum + row.num_enqueued, 0);
  if (!total) return null;
  return counted.reduce((sum, row) => sum + row.coverage_ratio * row.num_enqueued, 0) / total;
}

function sumOf(rows) {
  const sum = { peers: 0, transfer: 0, unmatched: 0, num: 0, bytes: 0, blockedSeconds: 0 };
  for (const row of rows) {
    for (const part of PARTS) sum[part] += row[`${part}_seconds`];
    sum.num += row.num_collectives;
    sum.bytes += row.num_bytes ?? 0;
  }
  sum.blockedSeconds = sum.peers + sum.transfer + sum.unmatched;
  return sum;
}

function rowsOf(rank, isDevice) {
  return rank.collectives.filter((row) => (row.method === DEVICE) === isDevice);
}

class CollectiveLine {
  constructor() {
    const cell = (className) => element("td", className);
    this.name = element("th", "c-rank", { scope: "row" });
    this.bar = new SplitBar("last");
    this.bar.node.tabIndex = 0;
    this.bar.node.setAttribute("role", "img");
    this.cells = Object.fromEntries(
      [...PARTS, "seen"].map((key) => [key, cell(`c-${key} num`)]),
    );
    const bars = element("td", "c-split", {}, this.bar.node);
    this.node = element("tr", "", {}, this.name, bars, ...Object.values(this.cells));
    this.bar.node.addEventListener("mousemove", (event) =>
      this.explain(event.clientX, event.clientY),
    );
    this.bar.node.addEventListener("mouseleave", hideTooltip);
    this.bar.node.addEventListener("focus", () => this.explainFocused());
    this.bar.node.addEventListener("blur", hideTooltip);
  }

  update(rank, sum, scale, showsRole) {
    this.rank = rank;
    this.node.dataset.rank = `${rank.role}/${rank.rank}`;
    this.sum = sum;
    setText(this.name, showsRole ? `${rank.role} ${rank.rank}` : rank.rank);
    this.node.classList.toggle("gone", rank.state !== "live");
    const parts = PARTS.filter((part) => sum[part] > 0).map((name) => ({
      kind: "part",
      name,
      drawnSeconds: sum[name],
    }));
    this.bar.show(parts, scale);
    const label = PARTS.map((part) => `${PART_WORDS[part]} ${duration(sum[part])}`).join(", ");
    if (this.bar.node.ariaLabel !== label) this.bar.node.ariaLabel = label;
    const wall = rank.totals.wall_seconds;
    for (const part of PARTS) {
      const isKnown = rowsOf(rank, false).length > 0 && wall > 0;
      setText(this.cells[part], isKnown ? percent(sum[part] / wall) : "–");
      const title = `${duration(sum[part])} of ${duration(wall)}`;
      if (this.cells[part].title !== title) this.cells[part].title = title;
    }
    const seen = coverageOf(rank.groups);
    setText(this.cells.seen, percent(seen));
    this.cells.seen.classList.toggle("warn", seen !== null && seen < FULL_COVERAGE);
    const groups = rank.groups.map(groupWords).join("\n");
    if (this.cells.seen.title !== groups) this.cells.seen.title = groups;
  }

  explainFocused() {
    const box = this.bar.node.getBoundingClientRect();
    this.explain(box.left, box.bottom);
  }

  /** By group and stage, the longest first. */
  explain(x, y) {
    const hosts = rowsOf(this.rank, false);
    const rows = hosts
      .flatMap((row) =>
        PARTS.map((part) => ({
          kind: "part",
          name: part,
          label: `${row.stage || "outside a stage"} · group ${row.group} · ${PART_WORDS[part]}`,
          seconds: row[`${part}_seconds`],
        })),
      )
      .filter((row) => row.seconds > 0)
      .sort((one, other) => other.seconds - one.seconds)
      .slice(0, MAX_TOOLTIP_ROWS)
      .map((row) => ({ ...row, text: duration(row.seconds) }));
    const methods = [...new Set(hosts.map((row) => row.method))].join(", ");
    const { num, bytes: numBytes, blockedSeconds } = this.sum;
    const moved = numBytes > 0 ? ` of ${bytes(numBytes)}` : "";
    const detail = `${count(num)} collectives${moved}, blocked ${duration(blockedSeconds)}`;
    const how = methods ? `; split by ${methods}` : "";
    const device = deviceWords(rowsOf(this.rank, true));
    showTooltip(x, y, `Rank ${this.rank.rank}`, `${detail}${how}${device}`, rows);
  }
}

/** What streams waited for, for collectives that were timed on the device. */
function deviceWords(rows) {
  if (!rows.length) return "";
  const sum = sumOf(rows);
  const parts = PARTS.filter((part) => sum[part] > 0).map(
    (part) => `${PART_WORDS[part]} ${duration(sum[part])}`,
  );
  const split = parts.length ? `: ${parts.join(", ")}` : "";
  return `; on the device, ${count(sum.num)} timed by ${DEVICE}${split}`;
}

function groupWords(row) {
  const seen = row.coverage_ratio === null ? "" : `, ${percent(row.coverage_ratio)} seen`;
  const completed = row.num_completed === null ? "" : `, ${count(row.num_completed)} completed`;
  return `group ${row.group}: ${count(row.num_enqueued)} enqueued${completed}${seen}`;
}

// Memory of each rank: the allocators of its devices, and the host memory of the process.

import { blameOf } from "./blame.js";
import { element, reconcile, setHidden, setText } from "./element.js";
import { bytes, count, shownWords, signedBytes } from "./format.js";
import { MemoryChart } from "./memory_chart.js";
import { hideTooltip, showTooltip } from "./tooltip.js";

const MAX_TOOLTIP_ROWS = 12;

export class MemoryPanel {
  constructor() {
    this.node = document.getElementById("memory");
    this.body = document.getElementById("memory-rows");
    this.table = this.body.closest("table");
    this.scale = document.getElementById("memory-scale");
    this.note = document.getElementById("memory-note");
    this.rows = new Map();
    this.chart = new MemoryChart();
  }

  update(run) {
    const lines = run.ranks.flatMap(linesOf);
    setHidden(this.node, !lines.length);
    if (!lines.length) return;
    this.chart.update(run, blameOf(run));
    const keys = lines.map((line) => line.key);
    reconcile(this.body, this.rows, keys, () => new MemoryLine());
    const hasDevices = lines.some((line) => line.device);
    const hostScale = Math.max(...lines.map((line) => line.rank.host_memory?.anonymous_bytes ?? 0));
    const showsRole = new Set(run.ranks.map((rank) => rank.role)).size > 1;
    lines.forEach((line) => this.rows.get(line.key).update(line, hostScale, hasDevices, showsRole));
    this.table.classList.toggle("shows-role", showsRole);
    this.table.classList.toggle("host-only", !hasDevices);
    this.table.classList.toggle(
      "shows-ooms",
      lines.some(({ device }) => (device?.num_ooms ?? 0) + (device?.num_alloc_retries ?? 0) > 0),
    );
    setText(this.note, shownWords(run));
    setText(this.scale, hasDevices ? "Device · 0 to limit" : `Host · 0 to ${bytes(hostScale)}`);
  }
}

/** One line per device of a rank; a rank without one has a line for its host memory. */
function linesOf(rank) {
  const key = `${rank.role}/${rank.rank}/${rank.pid}`;
  if (rank.devices.length) {
    return rank.devices.map((device, index) => ({
      key: `${key}/${device.device}`,
      rank,
      device,
      isFirst: index === 0,
    }));
  }
  return rank.host_memory ? [{ key, rank, device: null, isFirst: true }] : [];
}

class MemoryLine {
  constructor() {
    const cell = (className) => element("td", className);
    this.name = element("th", "c-rank", { scope: "row" });
    this.held = element("i", "held");
    this.used = element("i", "used");
    this.bar = element("div", "fill", {}, this.held, this.used);
    this.bar.tabIndex = 0;
    this.bar.setAttribute("role", "img");
    this.cells = Object.fromEntries(
      ["host", "slope", "allocated", "reserved", "limit", "ooms"].map((key) => [
        key,
        cell(`c-${key} num`),
      ]),
    );
    const { host, slope, allocated, reserved, limit, ooms } = this.cells;
    const bars = element("td", "c-split", {}, this.bar);
    this.node = element("tr", "", {}, this.name, host, slope, bars);
    this.node.append(allocated, reserved, limit, ooms);
    this.bar.addEventListener("mousemove", (event) => this.explain(event.clientX, event.clientY));
    this.bar.addEventListener("mouseleave", hideTooltip);
    this.bar.addEventListener("focus", () => this.explainFocused());
    this.bar.addEventListener("blur", hideTooltip);
  }

  update(line, hostScale, hasDevices, showsRole) {
    const { rank, device, isFirst } = line;
    this.rank = rank;
    this.device = device;
    this.node.dataset.rank = `${rank.role}/${rank.rank}`;
    const host = rank.host_memory;
    const name = showsRole ? `${rank.role} ${rank.rank}` : rank.rank;
    setText(this.name, isFirst ? name : device.device);
    this.name.classList.toggle("quiet", !isFirst);
    this.node.classList.toggle("gone", rank.state !== "live");
    setText(this.cells.host, isFirst ? bytes(host?.anonymous_bytes ?? null) : "");
    setText(this.cells.slope, isFirst ? signedBytes(host?.slope_bytes_per_step ?? null) : "");
    for (const field of ["allocated", "reserved", "limit"]) {
      setText(this.cells[field], bytes(device?.[`${field}_bytes`] ?? null));
    }
    setText(this.cells.ooms, device ? troubles(device) : "");
    if (hasDevices) this.fill(device?.allocated_bytes, device?.reserved_bytes, limitOf(device));
    else this.fill(host?.anonymous_bytes, null, hostScale);
  }

  fill(used, held, full) {
    const width = (value) => `${value && full ? Math.min(100, (100 * value) / full) : 0}%`;
    this.used.style.width = width(used);
    this.held.style.width = width(held);
    const label = this.rows()
      .map((row) => `${row.label} ${row.text}`)
      .join(", ");
    if (this.bar.ariaLabel !== label) this.bar.ariaLabel = label;
  }

  explainFocused() {
    const box = this.bar.getBoundingClientRect();
    this.explain(box.left, box.bottom);
  }

  explain(x, y) {
    const title = `Rank ${this.rank.rank}${this.device ? `, ${this.device.device}` : ""}`;
    const detail = this.device ? "a peak is the largest of about one sample per second" : "";
    showTooltip(x, y, title, detail, this.rows());
  }

  /** Rows for the device and its peaks by stage; rows for host memory if there is no device. */
  rows() {
    const host = this.rank.host_memory;
    const rows = [];
    const add = (label, value) => {
      if (value !== null && value !== undefined) rows.push({ label, text: bytes(value) });
    };
    if (this.device) {
      add("allocated", this.device.allocated_bytes);
      add("reserved", this.device.reserved_bytes);
      add("limit", this.device.limit_bytes);
      Object.entries(this.device.stage_peak_bytes)
        .sort(([, a], [, b]) => b - a)
        .slice(0, MAX_TOOLTIP_ROWS)
        .forEach(([stage, peak]) => rows.push(peakRow(stage, peak)));
      this.rank.held
        .filter((held) => held.device === this.device.device)
        .slice(0, MAX_TOOLTIP_ROWS)
        .forEach((held) => rows.push(heldRow(held)));
      add("outside the allocator", this.rank.beside_allocator?.now_bytes);
    } else {
      add("host, anonymous", host?.anonymous_bytes);
      add("resident", host?.resident_bytes);
      add("virtual", host?.virtual_bytes);
      add("allocated by glibc", host?.heap?.used_bytes);
      add("freed, cached by glibc", host?.heap?.retained_bytes);
      add("malloc_trim would release", host?.heap?.trimmable_bytes);
    }
    return rows;
  }
}

function peakRow(stage, peak) {
  return { kind: "stage", name: stage, label: `peak in ${stage}`, text: bytes(peak) };
}

/** Memory where model states were loaded to the device ("start/...") or offloaded ("end/..."). */
function heldRow(held) {
  const text = `${bytes(held.allocated_bytes)}, ${bytes(held.reserved_bytes)} reserved`;
  return { kind: "stage", name: held.stage, label: `${held.point} of ${held.stage}`, text };
}

/** The value of a full bar: the limit, or the reserved memory if there is no limit. */
function limitOf(device) {
  return device?.limit_bytes ?? device?.reserved_bytes ?? null;
}

function troubles(device) {
  const words = [];
  if (device.num_alloc_retries) words.push(`${count(device.num_alloc_retries)} retries`);
  if (device.num_ooms) words.push(`${count(device.num_ooms)} OOM`);
  return words.join(", ");
}

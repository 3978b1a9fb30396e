// Device activity by stage: one row per rank, one column per stage.

import { element, reconcile, setHidden, setText } from "./element.js";
import { bytes, count, duration, percent, shownWords } from "./format.js";
import { compareStages } from "./palette.js";

const OUTSIDE = "outside stages";
const MOST_STAGES = 8;
const FULL_PERCENT = 70;
const EVENT_SECONDS = 900;
const AT_PLACE = /^\w+ at [^:]+:\d+: /; // the position in the agent's code that raised the error

export class DevicePanel {
  constructor() {
    this.node = document.getElementById("devices");
    this.head = document.getElementById("devices-head");
    this.body = document.getElementById("devices-rows");
    this.note = document.getElementById("devices-note");
    this.heads = new Map();
    this.rows = new Map();
  }

  update(run) {
    const ranks = run.ranks.filter((rank) => rank.device_stages.length);
    setHidden(this.node, !ranks.length);
    if (!ranks.length) return;
    const stages = stagesOf(ranks);
    const figure = figureOf(ranks);
    const showsRole = new Set(ranks.map((rank) => rank.role)).size > 1;
    const titles = ["Rank", "Device", ...stages.map((stage) => stage || OUTSIDE)];
    reconcile(this.head, this.heads, titles, (title) => ({
      node: element("th", headClass(title), { scope: "col" }, title),
    }));
    const keys = ranks.map((rank) => `${rank.role}/${rank.rank}`);
    reconcile(this.body, this.rows, keys, () => new DeviceLine());
    ranks.forEach((rank, index) =>
      this.rows.get(keys[index]).update(rank, stages, figure, showsRole),
    );
    const words = figure === "sm_active_ratio" ? "SM activity" : "utilisation, not SM activity";
    setText(this.note, `${words}, mean of 15 minutes${shownWords(run, " · ")}`);
  }
}

class DeviceLine {
  constructor() {
    this.name = element("th", "c-rank", { scope: "row" });
    this.devices = element("td", "c-device");
    this.node = element("tr", "", {}, this.name, this.devices);
    this.others = new Map();
  }

  update(rank, stages, figure, showsRole) {
    setText(this.name, showsRole ? `${rank.role} ${rank.rank}` : rank.rank);
    setText(this.devices, rank.device_names.map(deviceWords).join(", "));
    this.node.classList.toggle("gone", rank.state !== "live");
    const keys = ["name", "devices", ...stages.map((stage) => `stage ${stage}`)];
    this.others.set("name", { node: this.name }).set("devices", { node: this.devices });
    reconcile(this.node, this.others, keys, () => ({ node: element("td", "busy") }));
    stages.forEach((stage) => {
      const sample = rank.device_stages.find((row) => row.stage === stage);
      fill(this.others.get(`stage ${stage}`).node, sample, figure);
    });
  }
}

/** Shows how busy the device was, as a number and a depth of colour; the title has the details. */
function fill(cell, sample, figure) {
  const ratio = sample ? sample[figure] : null;
  setText(cell, ratio === null || ratio === undefined ? "–" : percent(ratio));
  const depth = Math.round(FULL_PERCENT * Math.min(1, ratio ?? 0));
  const color = `color-mix(in srgb, var(--accent) ${depth}%, transparent)`;
  if (cell.dataset.depth !== `${depth}`) {
    cell.dataset.depth = `${depth}`;
    cell.style.background = color;
  }
  const title = sample ? titleOf(sample) : "no device sample was mostly in this stage";
  if (cell.title !== title) cell.title = title;
}

function titleOf(sample) {
  const lines = [`${count(sample.num_samples)} samples, ${duration(sample.seconds)}`];
  const add = (name, value, text) => {
    if (value !== null && value !== undefined) lines.push(`${name} ${text(value)}`);
  };
  add("SM active", sample.sm_active_ratio, percent);
  add("tensor cores", sample.tensor_active_ratio, percent);
  add("utilisation", sample.utilization_ratio, percent);
  add("memory", sample.used_bytes, bytes);
  add("power", sample.power_watts, (watts) => `${Math.round(watts)} W`);
  add("clock", sample.clock_hertz, (hertz) => `${Math.round(hertz / 1e6)} MHz`);
  add("clocks held down", sample.throttled_ratio, percent);
  return lines.join("\n");
}

/** The longest stages of all ranks in the order of a step; time outside stages comes last. */
function stagesOf(ranks) {
  const seconds = new Map();
  for (const row of ranks.flatMap((rank) => rank.device_stages)) {
    seconds.set(row.stage, (seconds.get(row.stage) ?? 0) + row.seconds);
  }
  const named = [...seconds.keys()].filter(Boolean);
  named.sort((one, other) => seconds.get(other) - seconds.get(one));
  return [...named.slice(0, MOST_STAGES).sort(compareStages), ...(seconds.has("") ? [""] : [])];
}

/** SM activity if a device reports it, else utilisation, which is a different quantity. */
function figureOf(ranks) {
  const rows = ranks.flatMap((rank) => rank.device_stages);
  const hasSm = rows.some((row) => row.sm_active_ratio !== null);
  return hasSm ? "sm_active_ratio" : "utilization_ratio";
}

function headClass(title) {
  if (title === "Rank") return "c-rank";
  return title === "Device" ? "c-device" : "num";
}

/** The usual name of a device: "GPU 3", "NPU 7", "GPU 3 (MIG 0)". */
export function deviceWords(name) {
  const [device, part] = name.split("/");
  const [vendor, index] = device.split(":");
  const words = `${vendor === "ascend" ? "NPU" : "GPU"} ${index}`;
  return part ? `${words} (MIG ${part.replace("mig:", "")})` : words;
}

/** Notes on values that cannot be read (equal notes once), and on recent device errors; pure. */
export function deviceNotes({ faults, devices }, now) {
  const sourcesByText = new Map();
  for (const { part, what, message } of faults) {
    if (part !== "device") continue;
    const text = message.replace(AT_PLACE, "");
    sourcesByText.set(text, [...(sourcesByText.get(text) ?? []), what]);
  }
  const problems = [...sourcesByText].map(([text, [first, ...others]]) => {
    const [what, ...remedy] = text.split("; ");
    const more = others.length ? ` and ${others.length} more` : "";
    const title = first.includes(":") ? `${deviceWords(first)}${more}: ${what}` : what;
    return { key: `device ${text}`, level: "note", title, detail: remedy.join("; ") };
  });
  const events = devices
    .flatMap((row) => row.events)
    .filter((event) => now - event.time_seconds < EVENT_SECONDS);
  return [...problems, ...events.map((event) => eventNote(event))];
}

function eventNote({ device, name, time_seconds: at, meaning }) {
  return {
    key: `event ${device} ${name} ${at}`,
    level: "note",
    title: `${deviceWords(device)} reported ${name}`,
    detail: `${meaning ? `${meaning}. ` : ""}At ${new Date(at * 1000).toLocaleTimeString("en-GB")}.`,
  };
}

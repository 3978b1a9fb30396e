// One line per rank: its current activity, and the breakdown of its last step, on one scale for all
// ranks. Blamed ranks come first. For a large job, the table has the blamed ranks, the chosen ranks
// and a few ranks to compare.

import { blameOf, rowsOf } from "./blame.js";
import { element, reconcile, setHidden, setText } from "./element.js";
import { count, duration, elapsed, percent } from "./format.js";
import { inkOf, paint } from "./palette.js";
import { SplitBar, waitSeconds } from "./split.js";
import { hideTooltip, partRows, showTooltip } from "./tooltip.js";

const STATE_WORDS = {
  live: "live",
  exited: "exited",
  detached: "detached",
  died: "died",
  unknown: "state unknown",
};

export class RankTable {
  constructor() {
    this.body = document.getElementById("rank-rows");
    this.table = this.body.closest("table");
    this.rows = new Map();
    this.awaited = null;
  }

  /** Scrolls to the rank's line as soon as the line exists. */
  reveal(key) {
    this.awaited = key;
  }

  update(snapshot, run, opened) {
    const blame = blameOf(run);
    const ranks = rowsOf(run, blame, opened);
    const keys = ranks.map((rank) => `${rank.role}/${rank.rank}/${rank.pid}`);
    reconcile(this.body, this.rows, keys, () => new RankLine());
    const scale = Math.max(...run.ranks.flatMap(wallSeconds), 0) || 1;
    const showsRole = new Set(run.ranks.map((rank) => rank.role)).size > 1;
    const delays = [...blame.values()].some((found) => found.delays);
    this.table.classList.toggle("shows-blame", delays);
    ranks.forEach((rank, index) => {
      const row = this.rows.get(keys[index]);
      row.update(rank, scale, snapshot.time_seconds, showsRole);
      const key = `${rank.role}/${rank.rank}`;
      row.blame(blame.get(key), delays, snapshot.time_seconds);
      if (row.node.dataset.rank !== key) row.node.dataset.rank = key;
      row.node.classList.toggle("opened", opened.has(key));
      if (key !== this.awaited) return;
      this.awaited = null;
      row.node.scrollIntoView({ block: "center" });
    });
    setText(document.getElementById("ranks-scale"), `Last step, ${duration(scale)}`);
    const numLost = run.ranks.reduce((sum, rank) => sum + rank.num_lost_records, 0);
    this.table.classList.toggle("shows-lost", numLost > 0);
    const nodes = new Set(run.places.map((rank) => rank.node));
    const role = showsRole ? "" : `${run.ranks[0]?.role ?? ""} · `;
    const where = nodes.size === 1 ? [...nodes][0] : `${nodes.size} nodes`;
    const isPart = ranks.length < run.places.length;
    const part = isPart ? ` · ${ranks.length} of ${count(run.places.length)}, choose others above` : "";
    setText(document.getElementById("ranks-note"), `${role}${where}${part}`);
    this.table.classList.toggle("one-node", nodes.size === 1);
    const work = document.getElementById("work");
    setHidden(work, !run.work_lines.length);
    setText(work, run.work_lines.join("\n"));
  }

  tick(now) {
    for (const row of this.rows.values()) row.tick(now);
  }

  repaint() {
    for (const row of this.rows.values()) row.repaint();
  }
}

/** The last step sets the scale; a running step counts only if it is not much longer. */
function wallSeconds(rank) {
  return rank.last ? [rank.last.wall_seconds] : [rank.current.wall_seconds];
}

class RankLine {
  constructor() {
    const cell = (className, ...children) => element("td", className, {}, ...children);
    this.dot = element("i", "dot");
    this.name = element("span");
    this.state = element("span", "sr-only");
    this.swatch = element("i", "swatch");
    this.stage = element("span", "stage-name");
    this.parent = element("span", "quiet");
    this.chip = element("span", "chip", {}, this.swatch, this.stage);
    this.last = new SplitBar("last");
    this.current = new SplitBar("current");
    this.bars = element("div", "bars", {}, this.last.node, this.current.node);
    this.cells = {
      node: cell("c-node quiet"),
      delay: cell("c-delay num"),
      for: cell("c-for num"),
      step: cell("c-step num"),
      active: cell("c-share num"),
      wait: cell("c-share num"),
      idle: cell("c-share num"),
      tokens: cell("c-tokens num"),
      lost: cell("c-lost num"),
    };
    const head = element("th", "c-rank", { scope: "row" }, this.dot, this.name, this.state);
    this.node = element(
      "tr",
      "",
      {},
      head,
      this.cells.node,
      this.cells.delay,
      cell("c-stage", this.chip, this.parent),
    );
    const { for: since, step, active, wait, idle, tokens, lost } = this.cells;
    this.node.append(since, step, cell("c-split", this.bars), active, wait, idle, tokens, lost);
    this.bars.tabIndex = 0;
    this.bars.setAttribute("role", "img");
    this.bars.addEventListener("mousemove", (event) =>
      this.explain(event.target, event.clientX, event.clientY),
    );
    this.bars.addEventListener("mouseleave", hideTooltip);
    this.bars.addEventListener("focus", () => this.explainFocused());
    this.bars.addEventListener("blur", hideTooltip);
    this.place = "";
  }

  update(rank, scale, snapshotSeconds, showsRole) {
    this.rank = rank;
    this.snapshotSeconds = snapshotSeconds;
    this.dot.dataset.state = rank.state;
    setText(this.state, ` ${STATE_WORDS[rank.state]}`);
    setText(this.name, showsRole ? `${rank.role} ${rank.rank}` : rank.rank);
    this.name.title = `${rank.role} rank ${rank.rank}, ${STATE_WORDS[rank.state]}, pid ${rank.pid} on ${rank.node}`;
    this.updateStage(rank);
    const last = rank.last;
    this.last.update(last, scale);
    const label = last
      ? `last step: ${this.last.parts.map(partWords).join(", ")}`
      : "no closed step yet";
    if (this.bars.ariaLabel !== label) this.bars.ariaLabel = label;
    this.current.update(rank.state === "live" ? rank.current : null, scale);
    const share = (seconds) =>
      percent(last && last.wall_seconds > 0 ? seconds / last.wall_seconds : null);
    const { node, step, active, wait, idle, tokens, lost } = this.cells;
    setText(node, rank.node);
    setText(step, rank.step === null ? "–" : String(rank.step));
    setText(active, share(last?.active_seconds));
    setText(wait, share(last ? waitSeconds(last) : 0));
    setText(idle, share(last?.idle_seconds));
    setText(tokens, tokensPerSecond(rank));
    tokens.title = tokensTitle(rank);
    setText(lost, rank.num_lost_records ? count(rank.num_lost_records) : "");
    setHidden(this.bars, rank.source === "passive" || (!last && !rank.current));
  }

  /** Highlights a blamed rank and dims ranks that wait for it; `found` is the blame of this rank. */
  blame(found, hasVictims, now) {
    const level = found?.severity ?? "";
    if (this.node.dataset.blame !== level) this.node.dataset.blame = level;
    this.node.classList.toggle("victim", hasVictims && !found);
    setText(this.cells.delay, found ? found.delayText(now) : "");
  }

  updateStage(rank) {
    const place = placeOf(rank);
    this.node.classList.toggle("gone", rank.state !== "live");
    const key = `${place.kind}:${place.name}`;
    if (key !== this.place) {
      this.place = key;
      this.kind = place.kind;
      this.placeName = place.name;
      this.repaintChip();
    }
    setText(this.stage, place.text);
    const title = rank.inflight.map(spanText).join(" › ");
    if (this.chip.parentNode.title !== title) this.chip.parentNode.title = title;
    setText(this.parent, rank.state === "died" && rank.inflight.length ? "died here" : place.around);
  }

  /** Advances the clocks of live ranks between snapshots. */
  tick(now) {
    const span = this.rank.state === "live" ? this.rank.inflight.at(-1) : null;
    const since = Math.max(0, now - this.snapshotSeconds);
    setText(this.cells.for, span ? elapsed(span.elapsed_seconds + since) : "–");
  }

  explainFocused() {
    const box = this.bars.getBoundingClientRect();
    this.explain(this.last.node, box.left, box.bottom);
  }

  /** `target` is the bar, or the piece of a bar, under the pointer. */
  explain(target, x, y) {
    const isCurrent = target.closest(".current") !== null;
    const bar = isCurrent ? this.current : this.last;
    const split = isCurrent ? this.rank.current : this.rank.last;
    if (!split || !bar.parts.length) return;
    const index = [...bar.node.children].indexOf(target);
    const title = `Rank ${this.rank.rank}, ${isCurrent ? "running step so far" : "last step"}`;
    const rows = partRows(bar.parts, split.wall_seconds, bar.parts[index]);
    showTooltip(x, y, title, `${duration(split.wall_seconds)} in all`, rows);
  }

  repaintChip() {
    paint(this.swatch, this.kind, this.placeName);
    this.chip.style.setProperty("--ink", inkOf(this.kind, this.placeName));
  }

  repaint() {
    this.repaintChip();
    this.last.repaint();
    this.current.repaint();
  }
}

/** The position of a rank: text and colour of the chip, and the enclosing stage. */
function placeOf(rank) {
  if (rank.source === "passive") return passivePlace(rank);
  const span = rank.inflight.at(-1);
  if (!span) {
    const name = rank.state === "live" ? "between stages" : STATE_WORDS[rank.state];
    return { kind: "idle", name, text: name, around: "" };
  }
  if (span.kind === "collective") {
    const around = rank.inflight.findLast((outer) => outer.kind === "stage");
    const text = spanText(span);
    return { kind: "wait", name: "collective", text, around: around ? `in ${around.name}` : "" };
  }
  const around = rank.inflight.length > 1 ? `in ${rank.inflight.at(-2).name}` : "";
  return { kind: span.kind, name: span.name, text: spanText(span), around };
}

/** A rank without the guest has no spans: shows its latest stack, or how busy its CPUs are. */
function passivePlace(rank) {
  const look = rank.outside;
  const busy = look?.cpu_ratio == null ? "" : `${look.cpu_ratio.toFixed(1)} cores`;
  const starting = look?.is_starting ? "starting" : "";
  const text = look ? starting || look.stage || busy || STATE_WORDS[rank.state] : "log";
  const around = look ? `passive, state ${look.state || "gone"}` : "passive";
  return { kind: "idle", name: text, text, around };
}

/** "backward", "wait: barrier", "all_reduce@0 #1234". */
function spanText(span) {
  if (span.kind === "collective" && span.sequence !== null) return `${span.name} #${span.sequence}`;
  return span.kind === "wait" ? `wait: ${span.name}` : span.name;
}

function partWords(part) {
  return `${part.kind === "wait" ? "wait " : ""}${part.name} ${duration(part.seconds)}`;
}

/** Tokens of the last closed step / its wall time; uses only "total" if that is reported. */
function tokensPerSecond(rank) {
  const kinds = Object.entries(rank.tokens);
  if (!kinds.length || !(rank.tokens_seconds > 0)) return "–";
  const total = rank.tokens.total ?? kinds.reduce((sum, [, tokens]) => sum + tokens, 0);
  return count(total / rank.tokens_seconds);
}

function tokensTitle(rank) {
  const kinds = Object.entries(rank.tokens);
  if (!kinds.length) return "not reported by this run";
  return kinds
    .map(([kind, tokens]) => `${kind}: ${count(tokens)} tokens in the last step`)
    .join("\n");
}

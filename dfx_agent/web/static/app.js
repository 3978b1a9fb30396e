// The page: passes snapshots from the feed to the cards and advances the clocks between snapshots.

import { Address, rankKey } from "./address.js";
import { AgentCard } from "./agent_card.js";
import { AlertList } from "./alerts.js";
import { MAX_LISTED } from "./blame.js";
import { Charts } from "./charts.js";
import { CollectivePanel } from "./collectives.js";
import { DataCard } from "./data_card.js";
import { DevicePanel } from "./devices.js";
import { element, setHidden, setText } from "./element.js";
import { EnginePanel } from "./engines.js";
import { EventLoopPanel } from "./event_loops.js";
import { Feed } from "./feed.js";
import { count, duration } from "./format.js";
import { Header, stepNow } from "./header.js";
import { HeatmapPanel } from "./heatmap.js";
import { HealthPanel } from "./health.js";
import { Histories } from "./histories.js";
import { chatText } from "./incident_lines.js";
import { JobGrid } from "./job.js";
import { Legend } from "./legend.js";
import { MemoryPanel } from "./memory.js";
import { ObservedLine } from "./observed.js";
import { PipelinePanel } from "./pipeline.js";
import { RankTable } from "./ranks.js";
import { ScalarTable } from "./scalars.js";
import { StepBars } from "./steps.js";
import { StepCard } from "./step_card.js";
import { showTab } from "./tab.js";
import { onThemeChange } from "./theme.js";
import { Timeline } from "./timeline.js";
import { VerdictStrip } from "./verdict_strip.js";
import { Views } from "./views.js";

const TICK_MS = 100;
const VERDICT_MS = 1000;
const MAX_OPENED = 8;

class Page {
  constructor() {
    this.address = new Address(() => this.follow());
    this.views = new Views();
    this.header = new Header((name) => this.pick(name));
    this.verdicts = new VerdictStrip({
      show: (target) => this.showTarget(target),
      copy: (incident) => this.copy(incident),
    });
    this.alerts = new AlertList();
    this.job = new JobGrid((key) => this.open(key));
    this.opened = new Set();
    this.ranks = new RankTable();
    this.observed = new ObservedLine();
    this.collectives = new CollectivePanel();
    this.pipeline = new PipelinePanel();
    this.engines = new EnginePanel();
    this.devices = new DevicePanel();
    this.memory = new MemoryPanel();
    this.eventLoops = new EventLoopPanel();
    this.health = new HealthPanel();
    this.data = new DataCard();
    this.agent = new AgentCard();
    this.heatmap = new HeatmapPanel((rank, step) => this.openCell(rank, step));
    this.legend = new Legend();
    this.steps = new StepBars((step) => this.openStep(step));
    this.charts = new Charts();
    this.scalars = new ScalarTable();
    this.histories = new Histories(() => this.show(this.feed.snapshot));
    this.feed = new Feed((snapshot, isReconnect) => {
      if (isReconnect) this.histories.forget();
      this.show(snapshot);
    });
    this.timeline = new Timeline((rank, step) => this.openCell(rank, step));
    this.stepCard = new StepCard(
      (step) => this.openStep(step),
      (begin, end) => this.timeline.show(widened(begin, end)),
    );
    this.judgedMs = 0;
    this.marked = this.address.now.rank;
    this.named = "";
    this.feed.look(this.address.now.run, []);
    onThemeChange(() => this.repaint());
    document.addEventListener(
      "visibilitychange",
      () => this.feed.snapshot && this.show(this.feed.snapshot),
    );
    // A timer, not an animation frame: a page that is open all night must not use a full core.
    setInterval(() => document.hidden || requestAnimationFrame(() => this.tick()), TICK_MS);
  }

  pick(name) {
    this.address.set({ run: name, rank: "", step: "" });
    this.marked = this.named = "";
    this.opened.clear();
    this.feed.look(name, []);
  }

  /** The reader followed a link to another view, rank or run, or went back. */
  follow() {
    const { run, rank } = this.address.now;
    if (run && run !== this.run?.run) this.feed.look(run, []);
    this.marked = rank;
    this.named = "";
    if (this.feed.snapshot) this.show(this.feed.snapshot);
  }

  /** Scrolls to a rank ("ROLE/RANK") and marks the rank in every panel, or opens a view. */
  showTarget({ rank, view }) {
    if (view) this.address.set({ view });
    else this.markRank(rank);
    this.show(this.feed.snapshot);
    const card = document.getElementById(view ?? "");
    card?.scrollIntoView({ block: "start", behavior: "smooth" });
  }

  /** Shows all details of the rank in the address, also if the table of a large job omits the rank. */
  openNamed(run) {
    const key = rankKey(run.places, this.marked);
    if (!key || key === this.named) return;
    this.named = key;
    this.ranks.reveal(key);
    const isShown = run.ranks.some((rank) => `${rank.role}/${rank.rank}` === key);
    if (!isShown || run.places.length > MAX_LISTED) this.opened.add(key);
    if (!isShown) this.feed.look(run.run, this.opened);
  }

  markRank(key) {
    const hasTable = ["overview", "ranks"].includes(this.address.now.view);
    this.address.set({ rank: key, ...(hasTable ? {} : { view: "ranks" }) });
    this.marked = key;
    this.named = ""; // scroll again, also to the same rank
  }

  /** After a click on a cell of the heatmap or a piece of the timeline: shows its rank and its step. */
  openCell(rank, step) {
    this.address.set({ rank });
    this.marked = rank;
    this.named = "";
    this.openStep(step);
  }

  openStep(step) {
    this.address.set({ step: String(step), view: "timeline" });
    this.show(this.feed.snapshot);
    document.getElementById("step-card").scrollIntoView({ block: "nearest" });
  }

  async copy(incident) {
    const [rank] = incident.ranks;
    const place = rank === undefined ? {} : { rank: `${incident.role}/${rank}` };
    const address = this.address.link({ run: this.run.run, ...place });
    return copyText(chatText(this.run, incident, address));
  }

  /** Opens or closes the details of a rank ("ROLE/RANK"). */
  open(key) {
    if (!this.opened.delete(key)) {
      this.opened.add(key);
      this.ranks.reveal(key);
    }
    for (const oldest of [...this.opened].slice(0, -MAX_OPENED)) this.opened.delete(oldest);
    const isWhole = this.run.ranks.length === this.run.places.length;
    if (!isWhole) this.feed.look(this.run.run, this.opened);
    this.show(this.feed.snapshot);
  }

  show(snapshot) {
    const run = snapshot.runs.find((row) => row.run === snapshot.in_view);
    this.run = run;
    this.header.update(snapshot, run);
    setHidden(document.getElementById("empty"), Boolean(run));
    setHidden(document.getElementById("run-view"), !run);
    setText(document.getElementById("footer"), agentLine(snapshot.agent));
    setText(
      document.getElementById("empty-agent"),
      `The agent (pid ${snapshot.agent.pid} on ${snapshot.agent.node}) is waiting for a job.`,
    );
    this.judge();
    this.alerts.update(run);
    setHidden(this.views.nav, !run);
    if (!run || document.hidden) return;
    this.openNamed(run);
    this.job.update(run, this.opened);
    this.ranks.update(snapshot, run, this.opened);
    this.observed.update(run);
    this.collectives.update(run);
    this.pipeline.update(run);
    this.engines.update(run);
    this.devices.update(run);
    this.memory.update(run);
    this.eventLoops.update(run);
    this.health.update(run, snapshot.agent.detector);
    this.legend.update(run);
    this.steps.update(run);
    this.timeline.update(run, snapshot.agent.nodes);
    this.data.update(run);
    this.agent.update(snapshot.agent, this.feed.nowSeconds());
    this.stepCard.update(run, this.address.now.step, this.address.now.view === "timeline");
    this.heatmap.update(run, ["ranks", "timeline"].includes(this.address.now.view));
    this.histories.update(run);
    const charted = this.charts.update(run, this.histories);
    this.scalars.update(run, this.histories, charted);
    this.views.update(this.address.now, run.incidents);
    this.markRows(run);
  }

  /** Marks the rows whose `data-rank` is the shown rank. */
  markRows(run) {
    const key = rankKey(run.places, this.marked);
    this.timeline.mark(key);
    for (const node of document.querySelectorAll("[data-rank]")) {
      node.classList.toggle("marked", key !== "" && /** @type {HTMLElement} */ (node).dataset.rank === key);
    }
  }

  judge() {
    this.judgedMs = performance.now();
    if (!this.feed.snapshot) return;
    this.verdicts.update(this.feed, this.run, this.alerts.firing);
    showTab(this.verdicts.lines, this.run, this.run ? stepNow(this.run) : null);
  }

  tick() {
    this.header.tick(this.feed);
    if (performance.now() - this.judgedMs > VERDICT_MS) this.judge();
    if (!this.run) return;
    const now = this.feed.nowSeconds();
    this.ranks.tick(now);
    this.timeline.draw(now);
    this.steps.draw(this.timeline.canvas.clientHeight);
  }

  repaint() {
    this.job.repaint();
    this.ranks.repaint();
    this.collectives.repaint();
    this.pipeline.repaint();
    this.health.repaint();
    this.heatmap.repaint();
    this.memory.chart.repaint();
    this.legend.repaint();
    this.steps.repaint();
    this.stepCard.repaint();
    this.timeline.isDirty = true;
  }
}

/** A step with a tenth of its time around it. */
function widened(begin, end) {
  const margin = (end - begin) / 10;
  return { begin: begin - margin, end: end + margin };
}

/** Copies text; returns whether that worked. Without HTTPS browsers refuse the Clipboard API. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = element("textarea", "sr-only", { value: text });
    document.body.append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    return isCopied;
  }
}

function agentLine(agent) {
  if (agent.nodes.length) {
    const refused = agent.nodes.reduce((sum, node) => sum + node.num_refused, 0);
    return (
      `dfx-agent ${agent.version} · hub of ${agent.nodes.length} ${agent.nodes.length === 1 ? "node" : "nodes"} · pid ${agent.pid} on ${agent.node} · ` +
      `${count(agent.num_polls)} documents accepted, ${count(refused)} refused`
    );
  }
  return (
    `dfx-agent ${agent.version} · pid ${agent.pid} on ${agent.node} · ${agent.num_segments} segments · ` +
    `${count(agent.num_records)} records read · last poll took ${duration(agent.poll_elapsed_seconds)}`
  );
}

/** Removes the token from the address and the history: the token is a cookie by now. */
function dropToken() {
  const url = new URL(location.href);
  if (!url.searchParams.has("token")) return;
  url.searchParams.delete("token");
  history.replaceState(null, "", url);
}

dropToken();
new Page();

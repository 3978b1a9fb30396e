// The top bar: which run, how far, how fast, how many ranks, how fresh.

import { element, setHidden, setText } from "./element.js";
import { count, duration, elapsed, percent, scalar } from "./format.js";

const PACE_STEPS = 10;
const STALLED_STEPS = 2;
const LATE_REPORT_SECONDS = 8; // a hub with many nodes receives a step up to this much later
const byId = (id) => document.getElementById(id);

/** Closed steps of the role that closed the latest step. */
export function leadSteps(run) {
  const role = run.steps.at(-1)?.role;
  return run.steps.filter((row) => row.role === role);
}

/**
 * Steps per minute over the latest closed steps; "–" with fewer than two steps or no running rank.
 * If the running step takes more than twice as long as any of them, returns "no step for …" instead.
 * `lateSeconds` is how late a step may be reported. Pure.
 */
export function paceText(steps, isRunning, now, lateSeconds) {
  const ends = steps.slice(-PACE_STEPS).map((row) => row.end_seconds);
  const seconds = ends.at(-1) - ends[0];
  if (ends.length < 2 || !(seconds > 0) || !isRunning) return "–";
  const longest = Math.max(...ends.slice(1).map((end, index) => end - ends[index]));
  const quiet = now - ends.at(-1);
  if (quiet > STALLED_STEPS * longest + lateSeconds) return `no step for ${elapsed(quiet)}`;
  const pace = (60 * (ends.length - 1)) / seconds;
  return `${pace < 999.5 ? pace.toPrecision(3) : count(pace)} /min`;
}

/** The latest step that a rank is in or that has closed; null before the first step. */
export function stepNow(run) {
  const running = run.places.map((rank) => rank.step).filter((step) => step !== null);
  return running.length ? Math.max(...running) : (leadSteps(run).at(-1)?.step ?? null);
}

export class Header {
  constructor(onPick) {
    this.select = /** @type {HTMLSelectElement} */ (byId("run-select"));
    this.select.addEventListener("change", () => onPick(this.select.value));
    this.names = "";
  }

  update(snapshot, run) {
    this.updateRuns(snapshot.runs, run);
    setHidden(byId("facts"), !run);
    if (!run) {
      setText(byId("run-origin"), "");
      return;
    }
    const origin = [run.framework, `attempt ${run.attempt}`].filter(Boolean).join(" · ");
    setText(byId("run-origin"), origin);
    const steps = leadSteps(run);
    const last = steps.at(-1);
    const step = stepNow(run);
    setText(byId("fact-step"), step === null ? "–" : String(step));
    setText(byId("fact-step-time"), last ? duration(last.end_seconds - last.begin_seconds) : "–");
    const numLive = run.num_living;
    const lateSeconds = snapshot.agent.nodes.length ? LATE_REPORT_SECONDS : 0;
    setText(byId("fact-pace"), paceText(steps, numLive > 0, snapshot.time_seconds, lateSeconds));
    setText(byId("fact-ranks"), `${numLive} / ${run.places.length}`);
    byId("fact-ranks").classList.toggle(
      "bad",
      run.places.some((rank) => rank.state === "died"),
    );
    setText(byId("fact-samples"), scalar(run.samples_per_second ?? null));
    setText(byId("fact-bubble"), percent(last?.bubble_ratio ?? null));
  }

  updateRuns(runs, run) {
    const names = JSON.stringify(runs.map((row) => row.run));
    if (names !== this.names) {
      this.names = names;
      this.select.replaceChildren(
        ...runs.map((row) => element("option", "", { value: row.run, textContent: row.run })),
      );
    }
    setHidden(this.select, runs.length < 2);
    setHidden(byId("run-name"), runs.length > 1);
    setText(byId("run-name"), run?.run ?? "");
    if (run && this.select.value !== run.run) this.select.value = run.run;
  }

  /** Shows how far the page is behind the agent. Called several times a second. */
  tick(feed) {
    const box = byId("freshness");
    if (box.dataset.state !== feed.state) box.dataset.state = feed.state;
    document.body.classList.toggle("lost", feed.state === "lost");
    setText(byId("freshness-text"), freshness(feed));
  }
}

function freshness(feed) {
  if (feed.state === "connecting") return "connecting";
  if (!feed.snapshot) return "agent unreachable";
  const age = elapsed(feed.ageSeconds());
  if (feed.state === "lost") return `agent unreachable · last seen ${age} ago`;
  return feed.state === "stale" ? `agent answers, but its last poll was ${age} ago` : `${age} ago`;
}

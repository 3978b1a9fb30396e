// The top bar: which run, how far, how fast, how many ranks, how fresh.

import { element, setHidden, setText } from "./element.js";
import { count, duration, elapsed, percent, scalar } from "./format.js";

const PACE_STEPS = 10;
const STALLED_STEPS = 2;
const TOLD_LATE_SECONDS = 8; // a step that nodes tell a hub of is as old as that, where they are many
const byId = (id) => document.getElementById(id);

/** Closed steps of the role that closed the newest one. */
export function leadSteps(run) {
  const role = run.steps.at(-1)?.role;
  return run.steps.filter((row) => row.role === role);
}

/**
 * Steps per minute over the newest closed steps; "–" when fewer than two are known or nobody runs.
 * While the running step takes longer than any of them did, twice over, that is no pace any more;
 * `lateSeconds`: how old what is known of it may be. Pure.
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

/** The newest step that a rank is in, or that has closed; null before the first. */
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
    const lateSeconds = snapshot.agent.nodes.length ? TOLD_LATE_SECONDS : 0;
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

  /** Called several times a second: how far behind the agent this page is. */
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
  return feed.state === "stale" ? `agent answers, but looked last ${age} ago` : `${age} ago`;
}

// The connection to the agent: the stream of views, one-off requests, and the agent's clock.

import { patched } from "./delta.js";

const PROBE_TIMEOUT_MS = 2000;
const REOPEN_MS = 2000;
const STALE_SECONDS = 5;
const STALE_GAPS = 3;

/** GET a JSON answer, path relative to the page. Throws on any status but 200. */
export async function getJson(path, timeoutMs = 10000) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(timeoutMs) });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

/** GET a list that comes in pages: each leads to the next by a `Link` header. */
export async function getPages(path, query, timeoutMs = 10000) {
  const rows = [];
  for (let next = `?${query}`; next;) {
    const answer = await fetch(path + next, { signal: AbortSignal.timeout(timeoutMs) });
    if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
    rows.push(...(await answer.json()));
    next = /^<([^>]*)>; rel="next"$/.exec(answer.headers.get("Link") ?? "")?.[1];
  }
  return rows;
}

/** Asks the agent to do something, path relative to the page. Throws when it refuses. */
export async function post(path, timeoutMs = 10000) {
  const answer = await fetch(path, { method: "POST", signal: AbortSignal.timeout(timeoutMs) });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
}

/**
 * Calls `onSnapshot(snapshot, isReconnect)` for each view (of dfx_agent/web/view.py). `state` is
 * "connecting", "live", "stale" (the agent answers but makes no new views) or "lost"; the stream
 * reopens by itself. A tab that nobody sees has none.
 */
export class Feed {
  constructor(onSnapshot) {
    this.onSnapshot = onSnapshot;
    this.snapshot = null;
    this.state = "connecting";
    this.sentSeconds = 0;
    this.arrivedMs = 0;
    this.gapSeconds = 0; // between the newest two views: those of a large job come seldom
    this.lostMs = null;
    this.isProbing = false;
    this.query = "";
    document.addEventListener("visibilitychange", () => this.open());
    setInterval(() => this.watch(), 1000);
  }

  /** What the page looks at from now on: a run, "" for any, and ranks ("ROLE/RANK") in full. */
  look(run, ranks) {
    const query = new URLSearchParams(run ? { run } : {});
    for (const rank of ranks) query.append("rank", rank);
    if (this.stream && query.toString() === this.query) return;
    this.query = query.toString();
    this.open();
  }

  open() {
    this.stream?.close();
    this.version = 0;
    if (document.hidden) return;
    this.stream = new EventSource(`api/v1/stream?${this.query}`);
    this.stream.addEventListener("whole", (event) => this.receive(event));
    this.stream.addEventListener("patch", (event) => this.receive(event));
    this.stream.addEventListener("error", (event) => event.target === this.stream && this.lose());
  }

  receive(event) {
    const { version, view, patch } = JSON.parse(event.data);
    if (event.target !== this.stream) return;
    if (patch && version !== this.version + 1) {
      this.open(); // a gap: ask for the whole
      return;
    }
    const wasLost = this.state === "lost";
    this.snapshot = patch ? patched(this.snapshot, patch) : view;
    this.version = version;
    this.sentSeconds = Number(event.lastEventId);
    const now = performance.now();
    this.gapSeconds = patch ? (now - this.arrivedMs) / 1000 : 0;
    this.arrivedMs = now;
    this.lostMs = null;
    this.state = "live";
    this.onSnapshot(this.snapshot, wasLost);
  }

  lose() {
    if (this.state !== "lost") {
      this.state = "lost";
      this.lostMs = performance.now();
    }
    // After an HTTP error the browser gives up; after a broken connection it retries by itself.
    if (this.stream.readyState === EventSource.CLOSED && !this.reopening) {
      this.reopening = setTimeout(() => {
        this.reopening = null;
        this.open();
      }, REOPEN_MS);
    }
  }

  /** Heartbeats do not reach scripts, so silence is told from a dead agent by asking. */
  async watch() {
    if (this.state === "lost" || !this.snapshot || this.isProbing || document.hidden) return;
    if (this.ageSeconds() < Math.max(STALE_SECONDS, STALE_GAPS * this.gapSeconds)) {
      this.state = "live";
      return;
    }
    this.isProbing = true;
    try {
      await getJson("healthz", PROBE_TIMEOUT_MS);
      this.state = "stale";
    } catch {
      this.lose();
      this.open();
    } finally {
      this.isProbing = false;
    }
  }

  /** The agent's clock now, Unix seconds; stands still while the agent cannot be reached. */
  nowSeconds() {
    return this.sentSeconds + ((this.lostMs ?? performance.now()) - this.arrivedMs) / 1000;
  }

  /** How old the shown snapshot is, by the agent's clock and ours for the way since. */
  ageSeconds() {
    const since = (performance.now() - this.arrivedMs) / 1000;
    return Math.max(0, this.sentSeconds - this.snapshot.time_seconds + since);
  }
}

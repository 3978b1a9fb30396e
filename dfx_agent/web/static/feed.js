// The connection to the agent: the stream of views, one-off requests, and the agent's clock.

import { patched } from "./delta.js";

const PROBE_TIMEOUT_MS = 2000;
const REOPEN_MS = 2000;
const STALE_SECONDS = 5;
const STALE_GAPS = 3;

/** Sends GET to a path relative to the page and returns the JSON. Throws on an HTTP error. */
export async function getJson(path, timeoutMs = 10000) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(timeoutMs) });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

/** Reads a paginated list: each page has the address of the next in its `Link` header. */
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

/** Sends POST to a path relative to the page. Throws if the agent refuses. */
export async function post(path, timeoutMs = 10000) {
  const answer = await fetch(path, { method: "POST", signal: AbortSignal.timeout(timeoutMs) });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
}

/**
 * Calls `onSnapshot(snapshot, isReconnect)` for each view (of dfx_agent/web/view.py). `state` is
 * "connecting", "live", "stale" (the agent answers but sends no new views) or "lost". The stream
 * reconnects automatically. A hidden tab has no stream.
 */
export class Feed {
  constructor(onSnapshot) {
    this.onSnapshot = onSnapshot;
    this.snapshot = null;
    this.state = "connecting";
    this.sentSeconds = 0;
    this.arrivedMs = 0;
    this.gapSeconds = 0; // time between the latest two views; large jobs send fewer views
    this.lostMs = null;
    this.isProbing = false;
    this.query = "";
    document.addEventListener("visibilitychange", () => this.open());
    setInterval(() => this.watch(), 1000);
  }

  /** Selects the run to show ("" for any run) and the ranks ("ROLE/RANK") to show with all details. */
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
      this.open(); // a patch is missing: ask for the full view
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
    // A browser retries after a broken connection, but not after an HTTP error.
    if (this.stream.readyState === EventSource.CLOSED && !this.reopening) {
      this.reopening = setTimeout(() => {
        this.reopening = null;
        this.open();
      }, REOPEN_MS);
    }
  }

  /** Asks the agent whether it is alive: a script cannot see the heartbeats of the stream. */
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

  /** The agent's clock now, Unix seconds; does not advance while the agent cannot be reached. */
  nowSeconds() {
    return this.sentSeconds + ((this.lostMs ?? performance.now()) - this.arrivedMs) / 1000;
  }

  /** Age of the shown snapshot: the agent's clock, plus the time since arrival by the local clock. */
  ageSeconds() {
    const since = (performance.now() - this.arrivedMs) / 1000;
    return Math.max(0, this.sentSeconds - this.snapshot.time_seconds + since);
  }
}

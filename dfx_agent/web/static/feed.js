// The connection to the agent: the snapshot stream, one-off requests, and the agent's clock.

const PROBE_TIMEOUT_MS = 2000;
const REOPEN_MS = 2000;
const STALE_SECONDS = 5;

/** GET a JSON answer, path relative to the page. Throws on any status but 200. */
export async function getJson(path, timeoutMs = 10000) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(timeoutMs) });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

/** Asks the agent to do something, path relative to the page. Throws when it refuses. */
export async function post(path, timeoutMs = 10000) {
  const answer = await fetch(path, { method: "POST", signal: AbortSignal.timeout(timeoutMs) });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
}

/**
 * Calls `onSnapshot(snapshot, isReconnect)` for each one. `state` is "connecting", "live",
 * "stale" (the agent answers but makes no new snapshots) or "lost"; the stream reopens by itself.
 */
export class Feed {
  constructor(onSnapshot) {
    this.onSnapshot = onSnapshot;
    this.snapshot = null;
    this.state = "connecting";
    this.sentSeconds = 0;
    this.arrivedMs = 0;
    this.lostMs = null;
    this.isProbing = false;
    this.open();
    setInterval(() => this.watch(), 1000);
  }

  open() {
    this.stream?.close();
    this.stream = new EventSource("api/v1/stream");
    this.stream.addEventListener("snapshot", (event) => this.receive(event));
    this.stream.addEventListener("error", () => this.lose());
  }

  receive(event) {
    const wasLost = this.state === "lost";
    this.snapshot = JSON.parse(event.data);
    this.sentSeconds = Number(event.lastEventId);
    this.arrivedMs = performance.now();
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
    if (this.state === "lost" || !this.snapshot || this.isProbing) return;
    if (this.ageSeconds() < STALE_SECONDS) {
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

import assert from "node:assert/strict";
import { test } from "node:test";

import "./dom.js";

const opened = [];
globalThis.EventSource = class {
  constructor(url) {
    this.url = url;
    this.listeners = {};
    opened.push(this);
  }

  addEventListener(name, listener) {
    this.listeners[name] = listener;
  }

  close() {
    this.isClosed = true;
  }

  tell(name, data) {
    this.listeners[name]({ target: this, data: JSON.stringify(data), lastEventId: "100.5" });
  }
};
globalThis.setInterval = () => 0;
const { Feed } = await import("../../dfx_agent/web/static/feed.js");

test("a view is put together from what changed, and asked for anew after a gap", () => {
  const shown = [];
  const feed = new Feed((view) => shown.push(view));
  feed.look("", []);
  const [first] = opened;
  first.tell("whole", { version: 3, view: { time_seconds: 100, runs: [] } });
  first.tell("patch", { version: 4, patch: { s: { time_seconds: 101 } } });
  assert.deepEqual(shown.at(-1), { time_seconds: 101, runs: [] });
  assert.equal(feed.nowSeconds() >= 100.5, true);
  first.tell("patch", { version: 6, patch: { s: { time_seconds: 103 } } });
  assert.equal(first.isClosed, true);
  assert.equal(opened.length, 2);
  assert.equal(shown.length, 2);
  first.tell("patch", { version: 5, patch: { s: { time_seconds: 102 } } });
  assert.equal(shown.length, 2, "what comes late from the stream before is not taken");
  opened[1].tell("whole", { version: 1, view: { time_seconds: 104, runs: [] } });
  assert.deepEqual(shown.at(-1), { time_seconds: 104, runs: [] });
});

test("another look is another stream, the same one is not", () => {
  opened.length = 0;
  const feed = new Feed(() => {});
  feed.look("my run", ["actor/7", "a/b/9"]);
  assert.equal(opened[0].url, "api/v1/stream?run=my+run&rank=actor%2F7&rank=a%2Fb%2F9");
  feed.look("my run", ["actor/7", "a/b/9"]);
  assert.equal(opened.length, 1);
  feed.look("my run", []);
  assert.equal(opened.length, 2);
  assert.equal(opened[0].isClosed, true);
});

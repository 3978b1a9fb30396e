import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import "./dom.js";

const { EnginePanel } = await import("../../dfx_agent/web/static/engines.js");

const engine = (replica, changes = {}) => ({
  replica, dp_rank: "", url: `http://h:800${replica}/metrics`, worker: "", model: "m", pd: "",
  state: "up", reason: "", sleep_state: "", busy_ratio: 0.5, latencies: {}, rates: {},
  gauges: { running_requests: 3, waiting_requests: 1, kv_cache_usage_ratio: 0.25 }, ...changes,
});
const pool = (...replicas) => ({ engines: { replicas, spreads: {}, notes: [] } });
let panel;

beforeEach(() => {
  document.body.innerHTML =
    '<section id="engines" hidden><table><tbody id="engine-rows"></tbody></table>' +
    '<ul id="engine-notes"></ul></section>';
  panel = new EnginePanel();
});

const cells = (index) => [...panel.body.children[index].children].map((cell) => cell.textContent);

test("a run without engines has no table", () => {
  panel.update({ engines: null });
  assert.equal(panel.node.hidden, true);
});

test("a replica alone has no spread, and what nobody told is a dash", () => {
  panel.update(pool(engine("0")));
  assert.equal(panel.node.hidden, false);
  assert.deepEqual(cells(0), ["0", "up", "3", "1", "25 %", "50 %", "–", "–", "–"]);
  assert.equal(panel.spread.node.hidden, true);
});

test("latencies and speed are of the window, ranks and modes are named", () => {
  const latencies = { time_to_first_token_seconds: { num: 9, mean: 1, p50: 0.25, p99: 4 } };
  const changes = { latencies, rates: { generation_tokens: 1234 }, dp_rank: "2", pd: "decode" };
  panel.update(pool(engine("0", changes), engine("1", { sleep_state: "discard_all" })));
  assert.deepEqual(cells(0).slice(0, 2), ["0 · 2", "up, decode"]);
  assert.deepEqual(cells(0).slice(6), ["0.25 s", "4.00 s", "1,234"]);
  assert.equal(cells(1)[1], "asleep");
});

test("figures of an engine that is gone are old, and not shown", () => {
  panel.update(pool(engine("0", { state: "gone", reason: "nobody answers" })));
  assert.deepEqual(cells(0), ["0", "gone", "–", "–", "–", "–", "–", "–", "–"]);
});

test("the spread stands below the replicas, and notes are said", () => {
  const run = pool(engine("0"), engine("1"));
  run.engines.spreads = { waiting_requests: { min: 1, median: 5, max: 9, num: 2 } };
  run.engines.notes = [
    { kind: "outlier", sentence: "replica 1 has 9 requests waiting" },
    { kind: "not up", sentence: "in the table" },
  ];
  panel.update(run);
  panel.update(run);
  assert.equal(panel.body.children.length, 3);
  assert.equal(cells(2)[3], "1 · 5 · 9");
  assert.equal(panel.notes.textContent, "replica 1 has 9 requests waiting");
});

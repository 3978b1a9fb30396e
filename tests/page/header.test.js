import assert from "node:assert/strict";
import { test } from "node:test";

import "./dom.js";

const { Header } = await import("../../dfx_agent/web/static/header.js");

const IDS = ["facts", "run-origin", "fact-step", "fact-step-time", "fact-pace", "fact-ranks", "fact-samples", "fact-bubble", "run-name"];

/** What the bar says of the pace of steps of a second, so long after the newest one. */
function pace(nodes, quietSeconds) {
  document.body.innerHTML = `<select id="run-select"></select>${IDS.map((id) => `<p id="${id}"></p>`).join("")}`;
  const steps = [1, 2, 3].map((step) => ({
    step, role: "trainer", begin_seconds: step, end_seconds: step + 1, bubble_ratio: null,
  }));
  const run = {
    run: "r", framework: "", attempt: 0, places: [], num_living: 1, steps, samples_per_second: 48.22,
  };
  new Header(() => {}).update({ agent: { nodes }, runs: [run], time_seconds: 4 + quietSeconds }, run);
  return document.getElementById("fact-pace").textContent;
}

test("a step that is not told yet is not missed on a hub, and is on the node itself", () => {
  assert.equal(pace([], 1), "60.0 /min");
  assert.equal(pace([], 3), "no step for 3.0 s");
  assert.equal(pace([{ node: "a" }], 3), "60.0 /min");
  assert.equal(pace([{ node: "a" }], 11), "no step for 11.0 s");
});

test("samples per second are in the top bar", () => {
  pace([], 1);
  assert.equal(document.getElementById("fact-samples").textContent, "48.22");
});

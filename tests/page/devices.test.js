import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import "./dom.js";

const { DevicePanel, deviceWords } = await import("../../dfx_agent/web/static/devices.js");

const stage = (name, seconds, changes = {}) => ({
  stage: name, num_samples: 9, seconds, utilization_ratio: 0.9, sm_active_ratio: 0.25,
  tensor_active_ratio: null, power_watts: 612.4, used_bytes: 2 ** 30, clock_hertz: 1.755e9,
  throttled_ratio: 0, ...changes,
});
const rank = (label, stages, changes = {}) => ({
  role: "trainer", rank: label, state: "live", device_names: [`nvidia:${label}`],
  device_stages: stages, ...changes,
});
const run = (...ranks) => ({ ranks, places: ranks });
const texts = (row) => [...row.children].map((cell) => cell.textContent);
let panel;

beforeEach(() => {
  document.body.innerHTML =
    '<section id="devices" hidden><span id="devices-note"></span><table>' +
    '<thead><tr id="devices-head"></tr></thead><tbody id="devices-rows"></tbody></table></section>';
  panel = new DevicePanel();
});

test("a run without devices has no table", () => {
  panel.update(run(rank("0", [])));
  assert.equal(panel.node.hidden, true);
});

test("a row for each rank and a column for each stage, in the order of a step", () => {
  const update = stage("actor_update", 60, { sm_active_ratio: 0.62 });
  const outside = stage("", 90, { sm_active_ratio: null });
  panel.update(run(rank("0", [stage("rollout", 20), update, outside]), rank("1", [update])));
  assert.deepEqual(texts(panel.head), [
    "Rank", "Device", "rollout", "actor_update", "outside stages",
  ]);
  assert.deepEqual(texts(panel.body.children[0]), ["0", "GPU 0", "25 %", "62 %", "–"]);
  assert.deepEqual(texts(panel.body.children[1]), ["1", "GPU 1", "–", "62 %", "–"]);
  const cell = panel.body.children[0].children[2];
  assert.match(cell.title, /9 samples/);
  assert.match(cell.title, /power 612 W/);
  assert.match(panel.note.textContent, /^SM activity/);
});

test("columns keep their places when another stage becomes the longest", () => {
  const longest = () => texts(panel.head).slice(2);
  panel.update(run(rank("0", [stage("reward", 20.1), stage("rollout", 20), stage("own", 20.2)])));
  assert.deepEqual(longest(), ["rollout", "reward", "own"]);
  panel.update(run(rank("0", [stage("reward", 20.1), stage("rollout", 20.3), stage("own", 20)])));
  assert.deepEqual(longest(), ["rollout", "reward", "own"]);
});

test("of many stages the longest are shown", () => {
  const many = Array.from({ length: 9 }, (_, n) => stage(`own_${n}`, n + 1));
  panel.update(run(rank("0", many)));
  assert.deepEqual(texts(panel.head).slice(2), many.slice(1).map((row) => row.stage));
});

test("utilisation is never called SM activity", () => {
  panel.update(run(rank("0", [stage("rollout", 20, { sm_active_ratio: null })])));
  assert.deepEqual(texts(panel.body.children[0]), ["0", "GPU 0", "90 %"]);
  assert.match(panel.note.textContent, /^utilisation, not SM activity/);
});

test("a stage that is gone takes its column with it", () => {
  panel.update(run(rank("0", [stage("rollout", 20), stage("reward", 9)])));
  panel.update(run(rank("0", [stage("rollout", 20)])));
  assert.deepEqual(texts(panel.head), ["Rank", "Device", "rollout"]);
  assert.equal(panel.body.children[0].children.length, 3);
});

test("devices have the names that people use", () => {
  assert.equal(deviceWords("nvidia:3"), "GPU 3");
  assert.equal(deviceWords("ascend:7"), "NPU 7");
  assert.equal(deviceWords("nvidia:3/mig:1"), "GPU 3 (MIG 1)");
});

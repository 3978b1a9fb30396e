import assert from "node:assert/strict";
import { test } from "node:test";

import "./dom.js";

const { HeatmapData, MAX_STEPS, orderOf, shadesOf } = await import("../../dfx_agent/web/static/heatmap_data.js");

test("work is shaded against the median of its step, a wait against the longest", () => {
  assert.deepEqual(shadesOf([1, 1, 2, null], true, 2), [0, 0, 1, null]);
  assert.deepEqual(shadesOf([1, 1, 1.25, 0.25], true, 2), [0, 0, 0.5, -1]);
  assert.deepEqual(shadesOf([0, 1, null], false, 2), [0, 0.5, null]);
  assert.deepEqual(shadesOf([0, 0], true, 0), [0, 0]);
});

test("ranks are sorted by their mean, those without values last", () => {
  const values = [[1, 5, null], [3, 1, null]];
  assert.deepEqual(orderOf(values, 3, false), [0, 1, 2]);
  assert.deepEqual(orderOf(values, 3, true), [1, 0, 2]);
});

test("steps are remembered as they pass, also when a rank comes", () => {
  const data = new HeatmapData(() => {});
  data.store({ role: "actor", ranks: ["0", "1"], steps: [1], values: [[1, 2]] });
  data.store({ role: "actor", ranks: ["1", "2"], steps: [2], values: [[3, 4]] });
  assert.deepEqual(data.values, [[2, null], [3, 4]]);
  const steps = Array.from({ length: MAX_STEPS }, (_, index) => index + 3);
  data.store({ role: "actor", ranks: ["1", "2"], steps, values: steps.map(() => [0, 0]) });
  assert.equal(data.steps.length, MAX_STEPS);
  assert.equal(data.hasNews({ steps: [{ role: "actor", step: data.steps.at(-1) }] }), false);
  assert.equal(data.hasNews({ steps: [{ role: "actor", step: 9999 }] }), true);
});

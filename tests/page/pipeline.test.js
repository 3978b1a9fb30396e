import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import "./dom.js";

const { PipelinePanel, amountText, figuresOf, titleOf, waitsOf, weightSync } = await import(
  "../../dfx_agent/web/static/pipeline.js"
);

const split = (changes = {}) => ({
  wall_seconds: 4, active_seconds: 1, idle_seconds: 0, stage_seconds: {}, wait_seconds: {}, ...changes,
});
const places = (...roles) => roles.map((role) => ({ role, rank: "0" }));
const told = (metric, value, labels = {}) => ({
  key: metric, metric, labels, step: 7, moments: { count: 1, sum: value, min: value, max: value },
});
const run = (changes = {}) => ({
  places: [], ranks: [], roles: [], queue_depth: {}, scalars: [], engines: null, bottleneck: null,
  ...changes,
});
const FOUND = {
  state: "found", summary: "weight sync-bound: a ← b", role: "trainer", bound_by: "weight sync",
  cost_seconds: 2.5, cost_ratio: 0.5, step_seconds: 5, chain: ["ranks wait", "transfer takes 2 s"],
  causes: [
    {
      bound_by: "weight sync", component: "weight transfer to rollout replica 1", amount: 2,
      unit: "seconds", since_step: 11, sentence: "weight sync takes 2 s",
    },
  ],
  balance: "", first_step: 12, last_step: 16, parts: [],
};
const STEP = "A step takes 1.7 s: 40 % update, 35 % waiting for other ranks, 25 % rollout.";
const BREAKDOWN = {
  ...FOUND, state: "clear", bound_by: null, cost_seconds: null, cost_ratio: null, causes: [],
  summary: STEP, chain: [STEP, "The largest part is update: without it a step would take 1 s."],
  parts: [{ name: "update", kind: "work", seconds: 0.7, ratio: 0.4 }],
};
const IDS = ["pipeline-waits", "pipeline-sync", "bottleneck-causes"];
let panel;

beforeEach(() => {
  document.body.innerHTML =
    '<section id="pipeline" hidden><span id="pipeline-note"></span><div id="bottleneck">' +
    '<strong id="bottleneck-title"></strong><span id="bottleneck-cost"></span>' +
    '<ol id="bottleneck-chain"></ol><p id="bottleneck-balance"></p></div>' +
    '<dl id="pipeline-figures"></dl>' +
    IDS.map((id) => `<table id="${id}"></table>`).join("") +
    "</section>";
  const bodies = ["pipeline-wait-rows", "pipeline-sync-rows", "bottleneck-cause-rows"];
  bodies.forEach((id, index) => {
    const body = document.createElement("tbody");
    body.id = id;
    document.getElementById(IDS[index]).append(body);
  });
  panel = new PipelinePanel();
});

const text = (id) => document.getElementById(id).textContent;
const isHidden = (id) => document.getElementById(id).hidden;

test("a plain job has no pipeline", () => {
  panel.update(run({ places: places("trainer"), bottleneck: FOUND }));
  assert.equal(panel.node.hidden, true);
  panel.update(run({ places: places("trainer", "rollout") }));
  assert.equal(panel.node.hidden, true);
});

test("the bottleneck is told with its cost, its chain and who causes it", () => {
  panel.update(run({ places: places("trainer", "rollout"), bottleneck: FOUND }));
  assert.equal(panel.node.hidden, false);
  assert.equal(document.getElementById("bottleneck").dataset.level, "warn");
  assert.equal(text("bottleneck-title"), "Bound by weight sync");
  assert.equal(text("bottleneck-cost"), "2.50 s of a step of 5.00 s (50 %)");
  const chain = [...document.getElementById("bottleneck-chain").children];
  assert.deepEqual(chain.map((node) => node.textContent), FOUND.chain);
  const [cause] = document.getElementById("bottleneck-cause-rows").children;
  assert.deepEqual(
    [...cause.children].map((cell) => cell.textContent),
    ["weight transfer to rollout replica 1", "2.00 s a step", "step 11"],
  );
  assert.equal(text("pipeline-note"), "steps 12 to 16 of trainer");
  assert.equal(isHidden("bottleneck-balance"), true);
});

test("a synchronous job of one role shows where a step goes", () => {
  panel.update(run({ places: places("trainer"), bottleneck: BREAKDOWN }));
  assert.equal(panel.node.hidden, false);
  assert.equal(text("bottleneck-title"), "Where a step goes");
  assert.equal(text("bottleneck-cost"), STEP);
  const chain = [...document.getElementById("bottleneck-chain").children];
  assert.deepEqual(chain.map((node) => node.textContent), BREAKDOWN.chain.slice(1));
});

test("what is not found has neither chain nor causes", () => {
  const calm = { ...FOUND, state: "clear", bound_by: null, chain: [], causes: [], summary: "balanced" };
  panel.update(run({ engines: { replicas: [] }, bottleneck: calm }));
  assert.equal(text("bottleneck-title"), "Balanced");
  assert.equal(text("bottleneck-cost"), "balanced");
  assert.equal(isHidden("bottleneck-causes"), true);
  assert.equal(isHidden("bottleneck-chain"), true);
});

test("a verdict without a bound is no finding", () => {
  assert.equal(titleOf({ ...FOUND, state: "insufficient evidence", bound_by: null }), "Not known yet");
  assert.equal(titleOf({ ...FOUND, bound_by: "stalled" }), "Stalled");
});

test("amounts have their unit", () => {
  assert.equal(amountText({ amount: null, unit: "seconds" }), "–");
  assert.equal(amountText({ amount: 2, unit: "seconds" }), "2.00 s a step");
  assert.equal(amountText({ amount: 0.5, unit: "seconds a call" }), "0.50 s a call");
  assert.equal(amountText({ amount: 9, unit: "requests" }), "9 requests");
  assert.equal(amountText({ amount: 1.5, unit: "groups" }), "1.5 groups a step");
});

test("waits are of the last step, and of all its time where a role counts no steps", () => {
  const last = split({ wait_seconds: { collector: { "": 2 }, barrier: { train: 0.5 } }, active_seconds: 1.5 });
  const totals = split({ wall_seconds: 100, active_seconds: 40, wait_seconds: { queue: { "": 60 } } });
  const rows = waitsOf(run({ roles: [
    { role: "trainer", num_ranks: 2, is_of_steps: true, mean: last },
    { role: "rollout", num_ranks: 1, is_of_steps: false, mean: totals },
  ] }));
  assert.deepEqual(rows.map((row) => [row.role, row.words]), [
    ["trainer", "collector 50 % · barrier 13 %"], ["rollout", "queue 60 %"],
  ]);
  assert.deepEqual(rows.map((row) => row.seconds), [4, 100]);
  assert.deepEqual(rows.map((row) => row.title), [
    "mean of 2 in the last step", "mean of 1 in all its time",
  ]);
});

test("weight sync is by part of the sender, and by receiver", () => {
  const last = split({
    stage_seconds: { weight_sync: 1, weight_sync_pause: 0.25, weight_sync_transfer: 0.5 },
    wait_seconds: { remote: { weight_sync_transfer: 1.5 } },
  });
  const rows = weightSync(run({
    ranks: [{ role: "trainer", rank: "0", last }],
    scalars: [
      told("dfx_weight_update_seconds", 1.9, { part: "transfer", receiver: "10" }),
      told("dfx_weight_update_seconds", 0.1, { part: "transfer", receiver: "2" }),
      told("dfx_weight_sync_bytes", 2 ** 20, { receiver: "2" }),
    ],
  }));
  assert.deepEqual(rows.map((row) => [row.name, row.parts, row.bytes]), [
    ["whole", { pause: 0.25, transfer: 2 }, null],
    ["to replica 2", { transfer: 0.1 }, 2 ** 20],
    ["to replica 10", { transfer: 1.9 }, null],
  ]);
});

test("queues and lag are shown as far as they are told", () => {
  const figures = figuresOf(run({
    queue_depth: { groups: 3 },
    scalars: [
      told("dfx_policy_lag_versions", 1.25, { stat: "mean" }),
      told("dfx_policy_lag_versions", 9, { stat: "mean", variant: "in_flight" }),
      told("dfx_partial_rollout_ratio", 0.5),
    ],
  }));
  assert.deepEqual(figures.map(({ key, text: value }) => [key, value]), [
    ["Queue groups", "3"], ["Policy lag", "1.25"], ["Partial rollouts", "50 %"],
  ]);
});

test("a run that only tells of weight sync or lag has a pipeline without a bottleneck", () => {
  panel.update(run({ scalars: [told("dfx_partial_rollout_ratio", 0.5)] }));
  assert.equal(panel.node.hidden, false);
  assert.equal(isHidden("bottleneck"), true);
  assert.equal(isHidden("pipeline-sync"), true);
});

import assert from "node:assert/strict";
import { test } from "node:test";

import { panelsFor, rowsFor } from "../../dfx_agent/web/static/chart_panels.js";

const row = (key, metric = null, stat = undefined) => ({ key, metric, labels: { stat } });
const titles = (scalars) => panelsFor(scalars).map((panel) => panel.title);
const RL = ["Reward", "KL", "Entropy", "Gradient norm"];

test("a plain loop that torch's hooks see has charts of its own", () => {
  assert.deepEqual(titles([row("torch/loss", "dfx_loss")]), ["Loss", "Gradient norm", "Learning rate"]);
  assert.deepEqual(titles([row("torch/loss", "dfx_loss"), row("x", "dfx_reward")]), RL);
  assert.deepEqual(titles([]), RL);
});

test("what the framework reports and torch's hooks see again is one curve", () => {
  const [panel] = panelsFor([row("torch/loss", "dfx_loss")]);
  const native = row("train/loss", "dfx_loss");
  assert.deepEqual(rowsFor(panel, [row("torch/loss", "dfx_loss"), native]), [native]);
});

test("only means, and four curves at most", () => {
  const reward = panelsFor([])[0];
  const rows = [1, 2, 3, 4, 5].map((n) => row(`r${n}`, "dfx_reward"));
  assert.deepEqual(rowsFor(reward, [row("m", "dfx_reward", "max"), ...rows]), rows.slice(0, 4));
});

test("a plain name that no framework has is the curve that it means, after those that have one", () => {
  const rows = [row("entropy"), row("reward"), row("kl")];
  const meant = { reward: "reward", entropy: "entropy", policy_kl: "kl" };
  const shown = (scalars) => panelsFor(scalars, meant).map((panel) => rowsFor(panel, scalars, meant).map((r) => r.key));
  assert.deepEqual(shown(rows), [["reward"], ["kl"], ["entropy"], []]);
  assert.deepEqual(shown([...rows, row("critic/rewards/mean", "dfx_reward")])[0], ["critic/rewards/mean"]);
});

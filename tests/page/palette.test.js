import assert from "node:assert/strict";
import { test } from "node:test";

import "./dom.js";

const { compareStages, inkOf, paint, stageColor } = await import(
  "../../dfx_agent/web/static/palette.js"
);
const { element } = await import("../../dfx_agent/web/static/element.js");

test("stages stand in the order of a step, unknown ones behind by name", () => {
  const names = ["zeta", "optimizer", "alpha", "rollout", "backward"];
  assert.deepEqual(names.sort(compareStages), [
    "rollout",
    "backward",
    "optimizer",
    "alpha",
    "zeta",
  ]);
});

test("a stage that nobody knows keeps one colour, and another has another", () => {
  assert.equal(stageColor("my stage"), stageColor("my stage"));
  assert.notEqual(stageColor("my stage"), stageColor("your stage"));
  assert.match(stageColor("my stage"), /^hsl\(\d+ 38% \d+%\)$/);
});

test("idle is quiet, a wait has the ink of its kind", () => {
  assert.equal(inkOf("idle", "idle"), "var(--quiet)");
  assert.equal(inkOf("wait", "barrier"), "#e0787c");
  assert.equal(inkOf("stage", "rollout"), "#597cdf");
});

test("moving bytes is painted solid, in its own colour", () => {
  const node = element("i");
  paint(node, "part", "transfer");
  assert.match(node.style.background, /#aea17e/);
});

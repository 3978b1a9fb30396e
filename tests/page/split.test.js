import assert from "node:assert/strict";
import { test } from "node:test";

import "./dom.js";

const { partsOf, SplitBar, waitSeconds } = await import(
  "../../dfx_agent/web/static/split.js"
);

const split = (stages, waits = {}, idle = 0) => ({
  stage_seconds: stages,
  active_seconds: Math.min(
    3,
    Object.values(stages).reduce((sum, seconds) => sum + seconds, 0),
  ),
  wait_seconds: waits,
  idle_seconds: idle,
});

test("stages, then waits, then idle; nothing of what took no time", () => {
  const parts = partsOf(
    split({ backward: 1, rollout: 2, reward: 0 }, { barrier: { "": 0.5, rollout: 0.25 } }, 1),
  );
  assert.deepEqual(
    parts.map((p) => [p.kind, p.name, p.seconds]),
    [
      ["stage", "rollout", 2],
      ["stage", "backward", 1],
      ["wait", "barrier", 0.75],
      ["idle", "idle", 1],
    ],
  );
});

test("stages that overlap are squeezed: the bar stays wall time", () => {
  const parts = partsOf(split({ rollout: 3, reward: 3 }));
  assert.deepEqual(
    parts.map((p) => [p.seconds, p.drawnSeconds]),
    [
      [3, 1.5],
      [3, 1.5],
    ],
  );
});

test("waits are added over kinds and stages", () => {
  assert.equal(waitSeconds(split({}, { barrier: { a: 1, b: 2 }, queue: { "": 4 } })), 7);
  assert.equal(waitSeconds(split({})), 0);
});

test("the bar is updated in place, and a name with a colon keeps it", () => {
  const bar = new SplitBar("small");
  bar.update(split({ rollout: 1, "a:b": 1 }), 4);
  const [first, second] = bar.node.children;
  assert.equal(first.style.width, "25.000%");
  bar.repaint();
  bar.update(split({ "a:b": 2 }), 4);
  assert.deepEqual([...bar.node.children], [second]);
  assert.equal(second.style.width, "50.000%");
  bar.update(null, 4);
  assert.equal(bar.node.children.length, 0);
});

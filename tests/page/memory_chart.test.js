import assert from "node:assert/strict";
import { test } from "node:test";

await import("./dom.js");
const { axesOf, curvesOf } = await import("../../dfx_agent/web/static/memory_chart.js");

const MIB = 2 ** 20;
/** Curves of ranks with these (growth, free memory). */
const curves = (...pairs) =>
  curvesOf(
    pairs.map(([, free], rank) => ({
      role: "actor", rank, steps: [10, 20], anonymous_bytes: [100 * MIB, 200 * MIB], free_bytes: free,
    })),
    pairs.map(([slope], rank) => ({ role: "actor", rank, host_memory: { slope_bytes_per_step: slope } })),
  );

test("the axes reach the step at which the memory is used up", () => {
  const axes = axesOf(curves([10 * MIB, 100 * MIB]));
  assert.deepEqual([axes.first, axes.last, axes.until, axes.fullStep], [10, 20, 30, 30]);
  assert.equal(axes.limit, 300 * MIB);
  assert.equal(axes.isNear, true);
});

test("ranks fill the free memory together", () => {
  const [one, other] = curves([10 * MIB, 100 * MIB], [30 * MIB, 100 * MIB]);
  assert.deepEqual([one.limit, other.limit], [225 * MIB, 275 * MIB]);
  assert.equal(axesOf([one, other]).fullStep, 22.5);
});

test("a far limit is only named, and without growth nothing is extrapolated", () => {
  const far = axesOf(curves([10 * MIB, 10_000 * MIB]));
  assert.deepEqual([far.until, far.isNear, far.fullStep], [40, false, 1020]);
  const flat = axesOf(curves([0, 10_000 * MIB], [null, null]));
  assert.deepEqual([flat.until, flat.fullStep], [20, null]);
  assert.deepEqual(curvesOf([], []), []);
});

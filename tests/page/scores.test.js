import assert from "node:assert/strict";
import { test } from "node:test";

await import("./dom.js");
const { stripsOf } = await import("../../dfx_agent/web/static/scores.js");

test("scores are shares of their source, in the ranges that are used", () => {
  const edges = [-1, 0, 1];
  const { cells, rows } = stripsOf([
    { source: "math", edges, counts: [0, 1, 1, 0] },
    { source: "", edges, counts: [0, 0, 3, 1] },
  ]);
  assert.deepEqual(cells, [{ low: -1, high: 0 }, { low: 0, high: 1 }, { low: 1, high: Infinity }]);
  assert.deepEqual(rows, [
    { source: "all samples", total: 4, shares: [0, 0.75, 0.25] },
    { source: "math", total: 2, shares: [0.5, 0.5, 0] },
  ]);
  assert.deepEqual(stripsOf([]), { cells: [], rows: [] });
});

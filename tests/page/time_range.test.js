import assert from "node:assert/strict";
import { test } from "node:test";

const { arrivalOf } = await import("../../dfx_agent/web/static/arrivals.js");
const { StepTimes, panned, zoomed } = await import("../../dfx_agent/web/static/time_range.js");

const limits = { begin: 0, end: 100 };

test("zooming leaves the time under the pointer where it is, and ends at the limits", () => {
  assert.deepEqual(zoomed({ begin: 40, end: 60 }, 0.5, 45, limits), { begin: 42.5, end: 52.5 });
  assert.deepEqual(zoomed({ begin: 40, end: 60 }, 2, 40, limits), { begin: 40, end: 80 });
  assert.deepEqual(zoomed({ begin: 40, end: 60 }, 50, 50, limits), limits);
});

test("panning stops at the limits and does not zoom", () => {
  assert.deepEqual(panned({ begin: 40, end: 60 }, 10, limits), { begin: 50, end: 70 });
  assert.deepEqual(panned({ begin: 40, end: 60 }, 90, limits), { begin: 80, end: 100 });
  assert.deepEqual(panned({ begin: 40, end: 60 }, -90, limits), { begin: 0, end: 20 });
});

test("the map has the stored steps of the run and those of the view", async () => {
  const stored = [{ step: 1, begin_seconds: 5, end_seconds: 9 }];
  globalThis.fetch = async () => ({ ok: true, json: async () => stored });
  const times = new StepTimes();
  times.update("r", [{ step: 2, begin_seconds: 9, end_seconds: 12 }]);
  await new Promise((done) => setTimeout(done));
  assert.deepEqual([...times.steps.keys()].sort(), [1, 2]);
  assert.deepEqual(times.limits(20), { begin: 5, end: 20 });
});

test("the rank that did not wait arrived last; among several nobody is named", () => {
  const wait = { kind: "wait", name: "collective", begin_seconds: 10, end_seconds: 14 };
  const work = { ...wait, kind: "stage", name: "backward" };
  const short = { ...wait, begin_seconds: 13.5 };
  assert.deepEqual(arrivalOf(wait, [[wait], [short], [wait]]), { last: 1, waiting: [0, 2] });
  assert.equal(arrivalOf(wait, [[wait], [short], [work]]), null);
  assert.equal(arrivalOf(work, [[wait], [work]]), null);
  assert.equal(arrivalOf({ ...wait, name: "queue" }, [[wait], [work]]), null);
});

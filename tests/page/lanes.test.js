import assert from "node:assert/strict";
import { test } from "node:test";

const { Lanes } = await import("../../dfx_agent/web/static/lanes.js");

const piece = (name, begin, end) => ({ kind: "stage", name, begin_seconds: begin, end_seconds: end });
const row = (step, begin, end, ...pieces) => ({
  role: "actor", rank: "0", step, begin_seconds: begin, end_seconds: end, pieces,
});
const names = (lanes) => lanes.lanes.get("actor/0").rows.map((r) => r.pieces.map((p) => p.name));

test("what is told of the middle of a step is put behind what is known", () => {
  const lanes = new Lanes(() => {});
  lanes.merge(row(1, 0, null, piece("rollout", 0, 6), piece("reward", 6, 8)));
  lanes.merge(row(1, 0, 20, piece("reward", 6, 9), piece("backward", 9, 20)));
  lanes.merge(row(2, 20, null, piece("rollout", 20, 21)));
  assert.deepEqual(names(lanes), [["rollout", "reward", "backward"], ["rollout"]]);
  assert.deepEqual(lanes.lanes.get("actor/0").rows[0].pieces[1], piece("reward", 6, 9));
  assert.equal(lanes.latestEnd(), 21);
});

test("a step of which nothing is new keeps its pieces", () => {
  const lanes = new Lanes(() => {});
  lanes.merge(row(1, 0, null, piece("rollout", 0, 6)));
  lanes.merge(row(1, 0, 30));
  assert.deepEqual(names(lanes), [["rollout"]]);
  assert.equal(lanes.lanes.get("actor/0").rows[0].end_seconds, 30);
});

test("steps that closed during a request leave a hole, and the next request is for all steps", async () => {
  const lanes = new Lanes(() => {});
  const asked = [];
  const answers = [[row(1, 0, null, piece("rollout", 0, 6))], [row(3, 12, null, piece("rollout", 12, 13))], []];
  globalThis.fetch = async (path) => {
    asked.push(new URL(path, "http://agent/").searchParams.has("begin"));
    return { ok: true, json: async () => answers.shift(), headers: new Map() };
  };
  const rank = { role: "actor", rank: "0", step: 1, state: "live", inflight: [{ begin_seconds: 12 }] };
  const look = async () => {
    lanes.fetchedMs = -Infinity;
    lanes.update({ run: "r", attempt: 0, ranks: [rank] }, 0);
    await new Promise((done) => setTimeout(done));
  };
  await look();
  await look();
  assert.equal(lanes.hasHole, true);
  await look();
  assert.deepEqual(asked, [false, true, false]);
});

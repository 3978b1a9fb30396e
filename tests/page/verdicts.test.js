import assert from "node:assert/strict";
import { test } from "node:test";

import "./dom.js";

const { verdictsOf } = await import("../../dfx_agent/web/static/verdicts.js");
const { unaskedWords } = await import("../../dfx_agent/web/static/timeline.js");

const PART = "of this node only: 2 of 4 ranks are seen here";
const run = (changes) => ({
  run: "r", part: "", places: [], incidents: [], scalars: [], verdicts: [], dropped_ranks: [],
  num_stale_scalars: 0, standing: { state: "clear", reason: "" }, ...changes,
});
const agent = (hub) => ({
  problems: [], blind: null, other_agent_pid: null, num_dropped_runs: 0, num_exporter_errors: 0,
  num_segments: 2, nodes: [], hub,
});
const first = (part, hub) => verdictsOf({ agent: agent(hub) }, run({ part }), 0, [])[0];

test("a node that sees a part says so first, and leads to the hub that judges the whole", () => {
  const hub = { url: "http://h:9932", state: "joined", message: "" };
  const line = first(PART, hub);
  assert.equal(line.title, "Of this node only: 2 of 4 ranks are seen here");
  assert.deepEqual(line.link, { href: "http://h:9932/#run=r", text: "Open its page" });
  const lost = first(PART, { ...hub, state: "lost", message: "Connection refused" });
  assert.equal(lost.link, undefined);
  assert.match(lost.detail, /h:9932 does not take what this node tells: Connection refused/);
  assert.match(first(PART, null).detail, /--join URL/);
  assert.notEqual(first("", hub).key, "part");
});

test("whose timelines a hub could not get is said of nodes that are shown", () => {
  const nodes = [
    { node: "a", timeline_problem: "" },
    { node: "b", timeline_problem: "it is far away" },
    { node: "c", timeline_problem: "nobody looks at it" },
  ];
  const ranks = [{ node: "a" }, { node: "b" }];
  assert.equal(unaskedWords({ ranks }, nodes), "without b: it is far away");
});

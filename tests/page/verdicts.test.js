import assert from "node:assert/strict";
import { test } from "node:test";

import "./dom.js";

const { verdictsOf } = await import("../../dfx_agent/web/static/verdicts.js");
const { unaskedWords } = await import("../../dfx_agent/web/static/timeline.js");

const PART = "of this node only: 2 of 4 ranks are observed";
const run = (changes) => ({
  run: "r", part: "", places: [], incidents: [], scalars: [], verdicts: [], dropped_ranks: [],
  num_stale_scalars: 0, standing: { state: "clear", reason: "" }, ...changes,
});
const agent = (hub) => ({
  problems: [], blind: null, other_agent_pid: null, num_dropped_runs: 0, num_exporter_errors: 0,
  num_segments: 2, nodes: [], faults: [], devices: [], hub,
});
const first = (part, hub) => verdictsOf({ agent: agent(hub) }, run({ part }), 0, [])[0];

test("a node that sees a part says so first, and leads to the hub that judges the whole", () => {
  const hub = { url: "http://h:9932", state: "joined", message: "" };
  const line = first(PART, hub);
  assert.equal(line.title, "Of this node only: 2 of 4 ranks are observed");
  assert.deepEqual(line.link, { href: "http://h:9932/#run=r", text: "Open its page" });
  const lost = first(PART, { ...hub, state: "lost", message: "Connection refused" });
  assert.equal(lost.link, undefined);
  assert.match(lost.detail, /h:9932 does not accept reports from this node: Connection refused/);
  assert.match(first(PART, null).detail, /--join URL/);
  assert.notEqual(first("", hub).key, "part");
});

test("what the agent cannot store, and a full folder, are no refused segments", () => {
  const problems = ["evidence", "room", "totals", "version"].map((kind) => (
    { kind, path: "/dev/shm/x", message: `${kind}!` }
  ));
  const lines = verdictsOf({ agent: { ...agent(null), problems } }, run({}), 0, []);
  assert.deepEqual(lines.slice(0, 4).map((line) => [line.title, line.detail]), [
    ["Evidence cannot be written", "evidence!"],
    ["Processes that start now are not observed", "room!"],
    ["Counters cannot be stored", "totals!"],
    ["Segment refused (version)", "version!"],
  ]);
});

test("where steps are counted from is said once", () => {
  const step_origin = "Steps are counted from the moment of attaching.";
  const lines = verdictsOf({ agent: agent(null) }, run({ step_origin }), 0, []);
  assert.deepEqual(lines.filter((line) => line.title === step_origin).length, 1);
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

test("devices that cannot be read, and what they reported, are said and take no green away", () => {
  const message = (text) => `DeviceProblemError at device_watch.py:89: ${text}`;
  const refused = message("SM activity (GPM): permission refused; run the agent as root");
  const faults = [
    { part: "device", what: "nvidia:0", message: refused },
    { part: "device", what: "nvidia:1", message: refused },
    { part: "device", what: "ascend", message: "DeviceError at ascend.py:70: no libdcmi.so; mount it" },
    { part: "keeping", what: "evidence", message: "OSError at x.py:1: full" },
  ];
  const event = { device: "nvidia:3", name: "XID 79", time_seconds: 1000, meaning: "fell off" };
  const devices = [{ events: [event, { ...event, time_seconds: 10 }] }, { events: [] }];
  const lines = verdictsOf({ agent: { ...agent(null), faults, devices } }, run({}), 1100, []);
  assert.deepEqual(
    lines.map((line) => [line.level, line.title]),
    [
      ["note", "GPU 0 and 1 more: SM activity (GPM): permission refused"],
      ["note", "no libdcmi.so"],
      ["note", "GPU 3 reported XID 79"],
      ["good", "No problem found"],
    ],
  );
  assert.deepEqual(lines.slice(0, 2).map((line) => line.detail), ["run the agent as root", "mount it"]);
  assert.match(lines[2].detail, /^fell off. At /);
});

test("what could not be judged is said once, by the reason of the run", () => {
  const waits = { kind: "hang", state: "insufficient evidence", role: "", summary: "torchrun waits", evidence: [] };
  const clear = { ...waits, kind: "crash", state: "clear" };
  const standing = { state: "insufficient evidence", reason: "no step has closed yet; torchrun waits." };
  const [line] = verdictsOf({ agent: agent(null) }, run({ verdicts: [waits, clear], standing }), 0, []).slice(-1);
  assert.equal(line.detail, "No step has closed yet; torchrun waits.");
  assert.match(line.evidence.join(), /Hang: insufficient evidence \(torchrun waits\).*Crash: clear/);
});

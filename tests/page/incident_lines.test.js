import assert from "node:assert/strict";
import { test } from "node:test";

import "./dom.js";

const lines = await import("../../dfx_agent/web/static/incident_lines.js");
const { IncidentMemory } = await import("../../dfx_agent/web/static/incident_memory.js");

const rank = (name, changes) => ({ role: "actor", rank: name, state: "live", ...changes });
const run = (changes) => ({
  run: "r", places: [rank("0"), rank("1")], ranks: [], steps: [], incidents: [], past_incidents: [],
  verdicts: [], bottleneck: null, ending: "", ...changes,
});
const incident = (changes) => ({
  id: "straggler-1", kind: "straggler", state: "found", severity: "warning", role: "actor",
  ranks: ["1"], cause: "slower", step: 9, since_seconds: 0, lost_seconds: 0.3, cost: "",
  summary: "Rank 1 is slower.", sentence: "Rank 1 is slower. Move it.", action: "Move it.",
  alerts: [], evidence: ["18 of 20 steps"], runbook: "dfxstraggler", ...changes,
});
const unsure = (kind) => ({ kind, role: "actor", state: "insufficient evidence", summary: "", evidence: [] });

test("an incident says since when, what it costs and what to do, and its cause once", () => {
  const steps = [{ role: "actor", mean: { wall_seconds: 1.5 } }];
  const ranks = [{ devices: [{}] }];
  const [line] = lines.incidentLines(run({ steps, ranks, incidents: [incident()] }), 36_000, []);
  assert.equal(line.title, "Rank 1 is slower.");
  assert.equal(line.detail, "since step 9, 10 h 00 min · 0.30 s of each step (20 %) · 4 GPU-hours so far");
  assert.equal(line.action, "Move it.");
  assert.deepEqual(line.show, { rank: "actor/1", text: "Show rank 1" });
  assert.deepEqual(line.evidence, ["Rank 1 is slower. Move it.", "18 of 20 steps"]);
});

test("a hang costs the time of everybody, also of other roles", () => {
  const places = [rank("0"), rank("1"), rank("0", { role: "critic" }), rank("2", { state: "died" })];
  const hang = incident({ kind: "hang", lost_seconds: null });
  assert.equal(lines.lostHours(run({ places }), hang, 3600), 3);
  assert.equal(lines.lostHours(run({ places: [] }), hang, 3600), null);
});

test("what is noted and asks for nothing is no banner", () => {
  const noted = incident({ state: "noted", severity: "info", action: "" });
  assert.deepEqual(lines.incidentLines(run({ incidents: [noted] }), 1, []), []);
});

test("a suspicion has its bar, unless an incident of its kind is shown", () => {
  const hang = {
    ...unsure("hang"), action: "",
    summary: "Rank 0 waits for rank 1, at f (train.py:5). It is called a hang after 300 s.",
    suspicion: { ranks: ["1"], since_seconds: 36, limit_seconds: 300 },
  };
  const headlines = ["Rank 0 waits for rank 1."];
  const [line] = lines.suspicionLines(run({ verdicts: [hang], headlines }), 100);
  assert.equal(line.title, headlines[0]);
  assert.equal(line.detail, "At f (train.py:5). It is called a hang after 300 s.");
  assert.deepEqual(line.bar, { seconds: 64, limitSeconds: 300 });
  const located = { ...hang, summary: "Rank 0 waits for rank 1, which has been at f (train.py:5) for 64 s." };
  const [placed] = lines.suspicionLines(run({ verdicts: [located], headlines }), 100);
  assert.equal(placed.detail, "Rank 1 has been at f (train.py:5) for 64 s.");
  const both = run({ verdicts: [hang], incidents: [incident({ kind: "hang" })] });
  assert.deepEqual(lines.suspicionLines(both, 100), []);
  const crash = run({ verdicts: [hang], incidents: [incident({ kind: "crash", severity: "critical" })] });
  assert.deepEqual(lines.suspicionLines(crash, 100), [], "what is certain comes first");
  const early = { ...unsure("straggler"), action: "", suspicion: null };
  assert.deepEqual(lines.suspicionLines(run({ verdicts: [early] }), 100), []);
});

test("what bounds the job is said with its share", () => {
  const told = { state: "found", bound_by: "tool", cost_ratio: 0.62, parts: [], chain: [], summary: "s" };
  assert.equal(lines.bottleneckLine(run({ bottleneck: told })).title, "Bound by tool, 62 %");
  assert.equal(lines.bottleneckLine(run({ bottleneck: { ...told, state: "clear" } })), null);
});

test("the words for a chat have the sentence, evidence and the address", () => {
  const text = lines.chatText(run(), incident(), "http://h/#run=r");
  assert.equal(text, "straggler (rank 1) in run r: Rank 1 is slower. Move it.\n> 18 of 20 steps\nhttp://h/#run=r");
});

test("an incident in doubt stays for two minutes, and one that was cleared does not", () => {
  const memory = new IncidentMemory();
  const ids = (shown, now) => memory.doubtful(shown, now).map((row) => row.incident.id);
  assert.deepEqual(ids(run({ incidents: [incident()] }), 100), []);
  const inDoubt = run({ verdicts: [unsure("straggler")] });
  assert.deepEqual(ids(inDoubt, 110), ["straggler-1"]);
  assert.deepEqual(ids(inDoubt, 221), []);
  assert.deepEqual(ids(run({ incidents: [incident()] }), 300), []);
  assert.deepEqual(ids(run({ verdicts: [{ ...unsure("straggler"), state: "clear" }] }), 301), []);
  assert.deepEqual(ids(inDoubt, 302), [], "it was cleared");
});

test("a page that is opened meanwhile knows it from what is over", () => {
  const past = incident({ end_seconds: 90, is_until_run_end: false });
  const shown = run({ past_incidents: [past], verdicts: [unsure("straggler")] });
  const [row] = new IncidentMemory().doubtful(shown, 100);
  assert.deepEqual(row, { incident: past, seenSeconds: 90, isCleared: false });
  assert.deepEqual(lines.pastLines(shown, [row]), [], "and does not say that it is over");
});

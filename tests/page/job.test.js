import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import "./dom.js";

const { window } = globalThis;
globalThis.Element = window.Element;
const { JobGrid, nodesOf, wordsOf } = await import("../../dfx_agent/web/static/job.js");

const { shadeOf } = await import("../../dfx_agent/web/static/wall.js");
const { blameOf, rowsOf } = await import("../../dfx_agent/web/static/blame.js");

const place = (rank, changes = {}) => ({
  role: "actor", rank: String(rank), node: `node-${rank >> 3}`, local_rank: rank % 8, state: "live",
  step: 4, kind: "idle", now: "", blame: "", place: {}, ...changes,
});
const job = (num, changes = {}) =>
  Array.from({ length: num }, (_, rank) => place(rank, changes[rank] ?? {}));
let grid;
let opened;

beforeEach(() => {
  document.body.innerHTML =
    '<section id="job" hidden><span id="job-note"></span><div id="job-measure"></div>' +
    '<span id="job-scale"></span><div id="job-nodes"></div></section>';
  opened = [];
  grid = new JobGrid((key) => opened.push(key));
});

const cells = () => [...grid.body.querySelectorAll("button")];

test("few ranks of one node have no squares", () => {
  grid.update({ places: job(8) }, new Set());
  assert.equal(grid.card.hidden, true);
  grid.update({ places: job(16) }, new Set());
  assert.equal(grid.card.hidden, false);
});

test("nodes of culprits stand first, then of the dead, then of peers, then by number", () => {
  const places = job(1024, {
    700: { blame: "critical" }, 90: { blame: "warning" }, 300: { state: "died" },
    1000: { blame: "peer" }, 500: { blame: "warning" },
  });
  const names = nodesOf(places).map((node) => node.name);
  assert.deepEqual(names.slice(0, 7), [
    "node-87", "node-11", "node-62", "node-37", "node-125", "node-0", "node-1",
  ]);
});

test("each rank has its sign and its words", () => {
  const places = job(24, {
    1: { state: "died" }, 2: { state: "unknown" }, 9: { blame: "critical", kind: "stage", now: "backward" },
    10: { blame: "peer", local_rank: null }, 20: { state: "exited" },
  });
  grid.update({ places }, new Set(["actor/9"]));
  const byKey = new Map(cells().map((cell) => [cell.dataset.key, cell]));
  const signs = ["1", "2", "9", "10", "20", "0"].map((rank) => byKey.get(`actor/${rank}`).textContent);
  assert.deepEqual(signs, ["✕", "?", "▲", "", "", ""]);
  assert.equal(
    byKey.get("actor/9").ariaLabel,
    "actor rank 9 on node-1, local rank 1: live, blamed, step 4, backward",
  );
  assert.equal(
    wordsOf({ ...places[10], kind: "wait", now: "barrier" }),
    "actor rank 10 on node-1: live, peer of a blamed rank, step 4, waits: barrier",
  );
  assert.equal(byKey.get("actor/9").getAttribute("aria-pressed"), "true");
  assert.equal(
    document.getElementById("job-note").textContent,
    "24 ranks on 3 nodes · 1 ▲ blamed · 1 ✕ died · 1 exited · 1 ? state unknown",
  );
});

test("a chosen rank is told, and one square alone is reached by Tab", () => {
  grid.update({ places: job(24) }, new Set());
  cells()[3].click();
  assert.deepEqual(opened, ["actor/3"]);
  assert.equal(cells().filter((cell) => cell.tabIndex === 0).length, 1);
  const key = (name) => new window.KeyboardEvent("keydown", { key: name, bubbles: true });
  cells()[0].focus();
  cells()[0].dispatchEvent(key("ArrowRight"));
  assert.equal(document.activeElement, cells()[1]);
  cells()[1].dispatchEvent(key("End"));
  assert.equal(document.activeElement, cells()[23]);
  assert.equal(cells().filter((cell) => cell.tabIndex === 0).length, 1);
});

test("squares are updated in place", () => {
  grid.update({ places: job(24) }, new Set());
  const before = cells();
  grid.update({ places: job(24, { 3: { kind: "stage", now: "forward" } }) }, new Set());
  assert.deepEqual(cells(), before);
  assert.match(before[3].title, /step 4, forward$/);
  assert.match(before[4].title, /step 4, between stages$/);
});

test("the colour is the measure that is chosen, and what a rank is in where no rank has it", () => {
  const wall = { work: Array.from({ length: 24 }, (_, rank) => (rank === 3 ? 1.5 : 1)), wait: [], memory: [], tokens: [] };
  const shown = () => [...document.querySelectorAll("#job-measure button")].filter((node) => !node.hidden);
  grid.update({ places: job(24), wall }, new Set());
  assert.deepEqual(shown().map((node) => node.textContent), ["Work", "Now"]);
  assert.equal(shown()[0].getAttribute("aria-checked"), "true");
  assert.match(cells()[3].title, /work in the last step 1.5 times the median$/);
  shown()[1].click();
  assert.doesNotMatch(cells()[3].title, /work/);
  grid.update({ places: job(24) }, new Set());
  assert.deepEqual(shown().map((node) => node.textContent), ["Now"]);
});

test("a shade is two-sided against a median, one-sided of a share, and none without a value", () => {
  assert.deepEqual([1, 1.5, 3, 1 / 1.5, 0].map((value) => shadeOf("work", value)), [0, 1, 1, -1, -1]);
  assert.deepEqual([0, 0.32, 1].map((value) => shadeOf("wait", value)), [0, 0.3, 1]);
  assert.equal(shadeOf("work", null), null);
});

test("who is blamed is listed first, and of a large job a few besides", () => {
  const ranks = job(32);
  const incident = (severity, rank, changes) => ({
    kind: "straggler", severity, role: "actor", ranks: [rank], lost_seconds: 0.5, since_seconds: 0, ...changes,
  });
  const incidents = [incident("warning", "7"), incident("critical", "9", { kind: "hang", lost_seconds: null })];
  const blame = blameOf({ incidents });
  assert.deepEqual([...blame.keys()], ["actor/9", "actor/7"]);
  assert.deepEqual([...blame.values()].map((row) => row.delayText(12)), ["12.0 s", "0.50 s a step"]);
  const wrong = incident("critical", "0", { kind: "data", lost_seconds: null });
  assert.equal(blameOf({ incidents: [wrong] }).get("actor/0").delays, false, "nobody waits for wrong data");
  const listed = (run, chosen) => rowsOf(run, blame, new Set(chosen)).map((row) => row.rank);
  assert.deepEqual(listed({ ranks, places: ranks }, ["actor/20"]), ["9", "7", "20", "0", "1"]);
  const few = job(10);
  assert.deepEqual(listed({ ranks: few, places: few }, []).slice(0, 3), ["9", "7", "0"]);
});

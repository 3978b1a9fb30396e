import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import "./dom.js";

const { EventLoopPanel } = await import("../../dfx_agent/web/static/event_loops.js");

const held = (name, seconds) => ({ name, seconds, num_times: 1, longest_seconds: seconds });
const phase = (name, seconds, late_seconds, ...holders) => ({ name, seconds, late_seconds, holders });
const rank = (last_step) => ({
  role: "orchestrator", rank: "0", pid: 7,
  event_loop: {
    window: { p50_seconds: 0, p99_seconds: 1.5, max_seconds: 2 }, late_seconds: 3,
    window_seconds: 60, holders: [held("pack > dumps", 3)], last_step,
  },
});
const step = (...phases) => ({ step: 4, seconds: 6, phases, num_omitted_phases: 0 });
let panel;

beforeEach(() => {
  document.body.innerHTML =
    '<section id="event-loops" hidden><table><tbody id="event-loop-rows"></tbody></table>' +
    '<div id="loop-phases" hidden><table><tbody id="loop-phase-rows"></tbody></table></div></section>';
  panel = new EventLoopPanel();
});

const cells = (index) =>
  [...panel.phaseBody.children[index].children].map((cell) => cell.textContent);

test("a loop whose process has passed no step has no phases", () => {
  panel.update({ ranks: [rank(null)] });
  assert.equal(panel.node.hidden, false);
  assert.equal(panel.phases.hidden, true);
  panel.update({ ranks: [rank(step(phase("", 6, 0)))] });
  assert.equal(panel.phases.hidden, true, "nothing is marked");
});

test("phases stand in their order, with who held the loop", () => {
  const rows = [phase("pack", 3, 2.5, held("pack > dumps", 2.5)), phase("rollout", 2, 0), phase("", 1, 0)];
  panel.update({ ranks: [rank(step(...rows))] });
  assert.deepEqual(cells(0), ["orchestrator 0, step 4: 6.00 s", "pack", "3.00 s", "2.50 s", "2.50 s in pack > dumps"]);
  assert.deepEqual(cells(1), ["", "rollout", "2.00 s", "0 s", ""]);
  assert.deepEqual(cells(2), ["", "not inside any stage", "1.00 s", "0 s", ""]);
});

test("short phases are left out but those that held the loop, and what is not known is a dash", () => {
  const many = Array.from({ length: 20 }, (_, n) => phase(`p${n}`, 20 - n, null));
  many[19] = phase("p19", 0.5, 0.4, held("x", 0.4));
  panel.update({ ranks: [rank(step(...many))] });
  assert.equal(panel.phaseBody.children.length, 13);
  assert.equal(cells(0)[3], "–");
  assert.equal(cells(12)[1], "p19");
});

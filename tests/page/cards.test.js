import assert from "node:assert/strict";
import { test } from "node:test";

import "./dom.js";

const { dataLines } = await import("../../dfx_agent/web/static/data_card.js");
const { AgentCard } = await import("../../dfx_agent/web/static/agent_card.js");

test("what is known of batches: the verdict, its evidence, and how much was compared", () => {
  const verdict = { kind: "data", state: "clear", summary: "Samples agree.", evidence: ["rollout: 12"] };
  const mismatches = [{ boundary: "reward", kind: "lengths", count: 1200 }];
  const ledger = { num_judged_steps: 7, num_skipped_steps: 1, mismatches };
  assert.deepEqual(dataLines({ verdicts: [verdict], ledger }).map(([text]) => text), [
    "Samples agree.", "rollout: 12", "7 steps compared, 1 could not be.", "reward: lengths, 1,200 times",
  ]);
  assert.deepEqual(dataLines({ verdicts: [{ kind: "hang" }], ledger: null }), []);
});

test("the agent says what it reads, and when each node of a hub reported", () => {
  document.body.innerHTML = '<dl id="agent-facts"></dl><ul id="agent-nodes"></ul>';
  const node = { node: "a", heard_seconds: 88, has_left: false, num_refused: 2, message: "too old" };
  const agent = {
    version: "1", pid: 7, node: "h", begin_seconds: 40, num_segments: 4, num_records: 12000, num_lost_records: 0,
    poll_elapsed_seconds: 0.002, num_exporter_errors: 0, nodes: [node, { ...node, node: "b", has_left: true, num_refused: 0 }],
  };
  new AgentCard().update(agent, 100);
  const shown = [...document.querySelectorAll("dd, li")].map((each) => each.textContent);
  assert.deepEqual(shown.slice(1, 5), ["7 on h", "60.0 s", "4", "12,000"]);
  assert.deepEqual(shown.slice(-2), ["a: last report 12.0 s ago, 2 refused: too old", "b: disconnected"]);
});

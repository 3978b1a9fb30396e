import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import "./dom.js";

const { ObservedLine } = await import("../../dfx_agent/web/static/observed.js");

const rank = (name, gauges) => ({ ranks: [name], gauges });
let line;

beforeEach(() => {
  document.body.innerHTML = '<p id="observed" hidden></p>';
  line = new ObservedLine();
});

function said(...hooks) {
  return saidOf({ hooks, overhead_ratio: null, num_overheads: 0 });
}

function saidOf(run) {
  line.update(run);
  return line.node.hidden ? null : line.node.textContent;
}

test("nothing is said of a run that says nothing of its hooks", () => {
  assert.equal(said(rank("0", {})), null);
});

test("hooks that work, that are not used, and that failed somewhere", () => {
  const text = said(
    rank("0", { "patch/ddp": 1, "patch/fsdp": 0, "patch/loss": 1 }),
    rank("1", { "patch/ddp": 1, "patch/fsdp": 0, "patch/loss": -1 }),
  );
  assert.equal(
    text,
    "Observation: hooks ddp, loss · not used: fsdp · loss failed on rank 1",
  );
  assert.equal(line.node.querySelector(".warn").textContent, "loss failed on rank 1");
});

test("the cost is that of the rank where it is largest", () => {
  const text = saidOf({ hooks: [], overhead_ratio: 0.000354, num_overheads: 2 });
  assert.equal(text, "Observation: the guest costs at most 0.035 % of the time, measured in place");
});

test("what was given up is said with the ranks and the reason", () => {
  const text = said(rank("0", { "guest/given_up": 1 }), rank("1", { "guest/given_up": 2 }));
  assert.equal(
    text,
    "Observation: recorded less on ranks 0, 1, because the guest exceeds its overhead budget: " +
      "FLOPs in every 16th step, values and batches in every 16th step",
  );
});

test("a name of the job is text, whatever it holds", () => {
  said(rank("0", { "patch/<img src=x>": 1 }));
  assert.equal(line.node.querySelector("img"), null);
  assert.match(line.node.textContent, /<img src=x>/);
});

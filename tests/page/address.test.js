import assert from "node:assert/strict";
import { test } from "node:test";

import "./dom.js";

const { hashOf, parseAddress, rankKey } = await import("../../dfx_agent/web/static/address.js");
const { tabTitle } = await import("../../dfx_agent/web/static/tab.js");

test("an address leads to run, view, rank and step, and is made of them", () => {
  const address = { run: "exp/7 %41", view: "timeline", rank: "actor/37", step: "129" };
  assert.deepEqual(parseAddress(hashOf(address)), address);
  assert.equal(hashOf({ run: "r", view: "overview", rank: "", step: "" }), "#run=r");
  assert.equal(parseAddress("#view=nowhere").view, "overview");
});

test("a rank is found by its number, or by role and number", () => {
  const places = [{ role: "actor", rank: "0" }, { role: "critic", rank: "0" }, { role: "critic", rank: "7" }];
  assert.equal(rankKey(places, "7"), "critic/7");
  assert.equal(rankKey(places, "critic/0"), "critic/0");
  assert.equal(rankKey(places, "9"), "");
});

test("the tab says what is worst, else the step", () => {
  const run = { run: "r" };
  const line = (level, ranks) => ({ level, title: "t", incident: { kind: "hang", ranks } });
  assert.equal(tabTitle([line("warn", ["2"]), line("bad", ["1"])], run, 4), "✕ hang rank 1 · r");
  assert.equal(tabTitle([line("warn", ["1", "2"])], run, 4), "▲ hang 2 ranks · r");
  assert.equal(tabTitle([{ level: "bad", title: "The agent cannot be reached" }], run, 4), "✕ The agent cannot be reached · r");
  assert.equal(tabTitle([line("note", [])], run, 4), "step 4 · r");
  assert.equal(tabTitle([], null, null), "dfx-agent");
});

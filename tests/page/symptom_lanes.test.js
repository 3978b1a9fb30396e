import assert from "node:assert/strict";
import { test } from "node:test";

import "./dom.js";

document.body.innerHTML = '<canvas id="symptoms"></canvas><p id="symptoms-say"></p>';
const { familyText, SymptomLanes } = await import(
  "../../dfx_agent/web/static/symptom_lanes.js"
);

const row = (symptom, direction, isActive, onset = null) => ({
  symptom,
  direction,
  is_active: isActive,
  onset_step: onset,
});

test("a family that nobody has named is called as it is", () => {
  assert.equal(familyText("grad_norm"), "gradient norm");
  assert.equal(familyText("other"), "other");
});

test("active symptoms are said for those who do not see the lanes", () => {
  const lanes = new SymptomLanes();
  const history = { steps: [1, 2], is_latched: [false, false], symptoms: [] };
  lanes.update({ row: 1, symptoms: [row("reward", "down", false)] }, history);
  assert.equal(lanes.says.textContent, "No symptom is active.");
  lanes.update(
    { row: 2, symptoms: [row("reward", "down", true, 2), row("divergence", "up", true)] },
    history,
  );
  assert.equal(lanes.says.textContent, "Active symptoms: reward down since step 2, KL up.");
});

// The step under the pointer, so that all charts mark the same step.

const listeners = new Set();
let pointed = null;

/** Marks a step in every chart; null for none. */
export function pointAtStep(step) {
  if (step === pointed) return;
  pointed = step;
  for (const listener of listeners) listener(step);
}

/** Calls `listener(step)` whenever another step is marked. */
export function onStep(listener) {
  listeners.add(listener);
}

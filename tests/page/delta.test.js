import assert from "node:assert/strict";
import { test } from "node:test";

const { patched } = await import("../../dfx_agent/web/static/delta.js");

// how a patch looks is said in dfx_agent/web/stream.py, whose tests try both sides together

test("an object is set, dropped and patched inside; what was there stays as it is", () => {
  const old = { a: 1, gone: 2, inner: { b: 3, same: { c: 4 } }, same: [5] };
  const now = patched(old, { s: { a: null, more: true }, d: ["gone"], p: { inner: { s: { b: 6 } } } });
  assert.deepEqual(now, { a: null, more: true, inner: { b: 6, same: { c: 4 } }, same: [5] });
  assert.equal(old.gone, 2);
  assert.equal(now.same, old.same);
  assert.equal(now.inner.same, old.inner.same);
});

test("rows move, come and go, and are patched in their new places", () => {
  const old = [0, 1, 2, 3, 4].map((rank) => ({ rank, step: 1 }));
  const now = patched(old, { o: [[3, 5], { v: [{ rank: 9 }] }, [0, 1]], p: { 1: { s: { step: 2 } } } });
  assert.deepEqual(now, [
    { rank: 3, step: 1 }, { rank: 4, step: 2 }, { rank: 9 }, { rank: 0, step: 1 },
  ]);
  assert.equal(old[4].step, 1);
});

test("a value takes the place of any other", () => {
  assert.deepEqual(patched({ a: 1 }, { v: [1] }), [1]);
  assert.equal(patched([1], { v: null }), null);
});

test("a name of the job is a key, whatever it is", () => {
  const patch = JSON.parse('{"s":{"__proto__":{"x":1},"constructor":2}}');
  const now = patched({ a: 1 }, patch);
  assert.deepEqual(Object.keys(now), ["a", "__proto__", "constructor"]);
  assert.equal(Object.getPrototypeOf(now), Object.prototype);
});

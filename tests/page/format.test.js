import assert from "node:assert/strict";
import { test } from "node:test";

import * as format from "../../dfx_agent/web/static/format.js";

const table = (text, rows) =>
  test(text.name, () => {
    for (const [given, wanted] of rows) {
      assert.equal(text(...(Array.isArray(given) ? given : [given])), wanted, `${given}`);
    }
  });

table(format.duration, [
  [null, "–"],
  [Number.NaN, "–"],
  [-1, "0 s"],
  [0, "0 s"],
  [0.0001, "< 1 ms"],
  [0.0843, "84 ms"],
  [0.0994, "99 ms"],
  [0.0995, "0.10 s"],
  [6.741, "6.74 s"],
  [9.995, "10.0 s"],
  [95.2, "95.2 s"],
  [99.96, "1 min 40 s"],
  [125, "2 min 05 s"],
  [3599.6, "1 h 00 min"],
  [7380, "2 h 03 min"],
]);
table(format.elapsed, [
  [-3, "0.0 s"],
  [99.94, "99.9 s"],
  [100, "1 min 40 s"],
]);
table(format.axisSeconds, [
  [2.5, "2.5 s"],
  [120, "2 min"],
  [140, "2 min 20 s"],
  [7200, "2 h"],
]);
table(format.percent, [
  [null, "–"],
  [Number.POSITIVE_INFINITY, "–"],
  [0, "0.0 %"],
  [0.0994, "9.9 %"],
  [0.0996, "10 %"],
  [1, "100 %"],
]);
table(format.finePercent, [
  [0.000354, "0.035 %"],
  [1e-6, "< 0.001 %"],
  [0, "0 %"],
]);
table(format.bytes, [
  [null, "–"],
  [0, "0 B"],
  [1023, "1.00 KiB"],
  [65712345600, "61.2 GiB"],
  [-2048, "−2.00 KiB"],
  [1024 ** 5, "1024 TiB"],
]);
table(format.signedBytes, [
  [2048, "+2.00 KiB"],
  [0, "0 B"],
  [-2048, "−2.00 KiB"],
]);
table(format.scalar, [
  [null, "–"],
  [Number.NaN, "NaN"],
  [Number.NEGATIVE_INFINITY, "−∞"],
  [0, "0"],
  [-0, "0"],
  [0.000812, "8.12e−4"],
  [10483.2, "10,483"],
  [2e7, "2.00e7"],
  [-1.23456, "−1.235"],
]);
table(format.signed, [
  [[3.21, 1], "+3.2"],
  [[-0.42, 1], "−0.4"],
  [[-0.04, 1], "0.0"],
]);
table(format.rankList, [
  [[["7"]], "rank 7"],
  [[["0", "1", "2", "5"]], "ranks 0–2, 5"],
  [[["3", "2"]], "ranks 2, 3"],
  [[["p10", "p9"]], "ranks p10, p9"],
]);
table(format.unitText, [
  ["1", ""],
  ["", ""],
  ["nats", "nats"],
]);

test("absent is not zero, and what is no number is read as the API writes it", () => {
  assert.equal(format.toNumber(null), null);
  assert.equal(format.toNumber(undefined), null);
  assert.equal(format.toNumber("-Infinity"), Number.NEGATIVE_INFINITY);
  assert.ok(Number.isNaN(format.toNumber("NaN")));
});

// Formats numbers for people: always with a unit, three or four significant digits.

const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** JSON has no NaN: the API sends "NaN", "Infinity", "-Infinity". Absent stays null. */
export function toNumber(value) {
  return value === null || value === undefined ? null : Number(value);
}

/** 0.0843 -> "84 ms", 6.741 -> "6.74 s", 95.2 -> "95.2 s", 125 -> "2 min 05 s". */
export function duration(seconds) {
  if (seconds === null || Number.isNaN(seconds)) return "–";
  const positive = Math.max(0, seconds);
  if (positive < 0.0005) return positive > 0 ? "< 1 ms" : "0 s";
  if (positive < 0.0995) return `${Math.round(positive * 1000)} ms`;
  if (positive < 9.995) return `${positive.toFixed(2)} s`;
  if (positive < 99.95) return `${positive.toFixed(1)} s`;
  return longDuration(positive);
}

/** Whether the process is alive; "unknown" counts: its state is not readable, but its records arrive. */
export function isLiving(rank) {
  return rank.state === "live" || rank.state === "unknown";
}

/** A running clock: always one decimal, so that the width does not change. */
export function elapsed(seconds) {
  const positive = Math.max(0, seconds);
  return positive < 99.95 ? `${positive.toFixed(1)} s` : longDuration(positive);
}

/** Ticks of an axis: 2.5 -> "2.5 s", 120 -> "2 min", 140 -> "2 min 20 s", 7200 -> "2 h". */
export function axisSeconds(seconds) {
  if (seconds < 120) return `${Number(seconds.toPrecision(3))} s`;
  if (seconds % 3600 === 0) return `${seconds / 3600} h`;
  return seconds < 3600 && seconds % 60 === 0 ? `${seconds / 60} min` : longDuration(seconds);
}

function longDuration(seconds) {
  const whole = Math.round(seconds);
  const pad = (number) => String(number).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${pad(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${pad(Math.floor((whole % 3600) / 60))} min`;
}

export function percent(share) {
  if (share === null || !Number.isFinite(share)) return "–";
  return `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;
}

/** Small shares with two digits: 0.000354 -> "0.035 %". */
export function finePercent(share) {
  if (share > 0 && share < 1e-5) return "< 0.001 %";
  return `${Number((100 * share).toPrecision(2))} %`;
}

/** Hours of work, two digits: 0.0821 -> "0.082", 8.64 -> "8.6", 1234 -> "1,200". */
export function hours(n) {
  const rounded = Number(n.toPrecision(2));
  return rounded < 100 ? String(rounded) : count(rounded);
}

const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** 65712345600 -> "61.2 GiB", three digits; absent is "–". */
export function bytes(n) {
  if (n === null || !Number.isFinite(n)) return "–";
  const size = Math.abs(n);
  let power = 0;
  while (power < BYTE_UNITS.length - 1 && size >= 999.5 * 1024 ** power) power += 1;
  const value = size / 1024 ** power;
  const digits = power === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return `${n < 0 ? "−" : ""}${value.toFixed(digits)} ${BYTE_UNITS[power]}`;
}

/** Growth: always with its sign. */
export function signedBytes(n) {
  return n > 0 ? `+${bytes(n)}` : bytes(n);
}

export function count(n) {
  return grouped.format(n);
}

/** Any scalar: 0.000812 -> "8.12e−4", 10483.2 -> "10,483", NaN -> "NaN". */
export function scalar(value) {
  if (value === null) return "–";
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "+∞" : "−∞";
  const size = Math.abs(value);
  let text;
  if (size === 0) text = "0";
  else if (size >= 1e7 || size < 1e-3) text = value.toExponential(2).replace("e+", "e");
  else if (size >= 1e4) text = grouped.format(value);
  else text = String(Number(value.toPrecision(4)));
  return text.replaceAll("-", "−");
}

/** With a sign and a fixed number of decimals: +3.2, −0.4; a value that rounds to 0 has no sign. */
export function signed(value, digits) {
  const text = Math.abs(value).toFixed(digits);
  if (Number(text) === 0) return text;
  return `${value < 0 ? "−" : "+"}${text}`;
}

/** Units as the catalogue spells them; "1" is a pure number. */
export function unitText(unit) {
  return unit === "1" || !unit ? "" : unit;
}

/** Says which ranks of a large job are listed; "" if all ranks are. */
export function shownWords(run, before = "") {
  const { ranks, places } = run;
  if (ranks.length >= places.length) return "";
  return `${before}${ranks.length} of ${count(places.length)} ranks, blamed ranks and their peers first`;
}

/** ["0","1","2","5"] -> "ranks 0–2, 5"; one alone -> "rank 0". */
export function rankList(ranks) {
  const names = [...ranks];
  if (names.length === 1) return `rank ${names[0]}`;
  const numbers = names.map(Number);
  if (numbers.some((number) => !Number.isInteger(number))) return `ranks ${names.join(", ")}`;
  numbers.sort((one, other) => one - other);
  const parts = [];
  for (let first = 0; first < numbers.length;) {
    let last = first;
    while (last + 1 < numbers.length && numbers[last + 1] === numbers[last] + 1) last += 1;
    const joint = last > first + 1 ? "–" : ", ";
    parts.push(last > first ? `${numbers[first]}${joint}${numbers[last]}` : `${numbers[first]}`);
    first = last + 1;
  }
  return `ranks ${parts.join(", ")}`;
}

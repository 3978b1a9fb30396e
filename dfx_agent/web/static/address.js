// What the page looks at, in its address: #run=…&view=timeline&rank=actor/37&step=129. A link that
// is sent to somebody opens the same.

export const VIEWS = [
  ["overview", "Overview"],
  ["timeline", "Timeline"],
  ["ranks", "Ranks"],
  ["pipeline", "Pipeline"],
  ["memory", "Memory and devices"],
  ["health", "Training health"],
  ["data", "Data"],
  ["agent", "Agent"],
];
const KEYS = ["run", "view", "rank", "step"];
const NAMES = new Set(VIEWS.map(([name]) => name));

/** "#run=a&view=ranks" -> {run, view, rank, step}; what is absent or unknown is "". Pure. */
export function parseAddress(hash) {
  const query = new URLSearchParams(hash.replace(/^#/, ""));
  const [run, view, rank, step] = KEYS.map((key) => query.get(key) ?? "");
  return { run, view: NAMES.has(view) ? view : "overview", rank, step };
}

/** The opposite; the overview needs no word. Pure. */
export function hashOf(address) {
  const entries = KEYS.map((key) => [key, address[key] ?? ""]).filter(
    ([key, value]) => value !== "" && !(key === "view" && value === "overview"),
  );
  return `#${new URLSearchParams(entries)}`;
}

/** "37" or "actor/37" -> the key "actor/37" of a rank of the run, "" where there is none. Pure. */
export function rankKey(places, rank) {
  const found = places.find((place) => `${place.role}/${place.rank}` === rank || place.rank === rank);
  return found ? `${found.role}/${found.rank}` : "";
}

export class Address {
  /** `onChange(address)` is called when the reader follows a link or goes back. */
  constructor(onChange) {
    this.now = parseAddress(location.hash);
    addEventListener("hashchange", () => {
      this.now = parseAddress(location.hash);
      onChange(this.now);
    });
  }

  /** Changes some of it without a step in the browser's history. */
  set(changes) {
    this.now = { ...this.now, ...changes };
    const hash = hashOf(this.now);
    if (location.hash !== hash) history.replaceState(null, "", hash);
  }

  /** The whole address with these changes, for people. */
  link(changes) {
    return new URL(hashOf({ ...this.now, ...changes }), location.href).href;
  }
}

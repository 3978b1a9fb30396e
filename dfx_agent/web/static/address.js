// The address stores what the page shows: #run=…&view=timeline&rank=actor/37&step=129. A shared
// link opens the same view.

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

/** "#run=a&view=ranks" -> {run, view, rank, step}; absent and unknown parts are "". Pure. */
export function parseAddress(hash) {
  const query = new URLSearchParams(hash.replace(/^#/, ""));
  const [run, view, rank, step] = KEYS.map((key) => query.get(key) ?? "");
  return { run, view: NAMES.has(view) ? view : "overview", rank, step };
}

/** The reverse of the parser; the overview is the default view and is left out. Pure. */
export function hashOf(address) {
  const entries = KEYS.map((key) => [key, address[key] ?? ""]).filter(
    ([key, value]) => value !== "" && !(key === "view" && value === "overview"),
  );
  return `#${new URLSearchParams(entries)}`;
}

/** "37" or "actor/37" -> the key "actor/37" of a rank of the run; "" if there is no such rank. Pure. */
export function rankKey(places, rank) {
  const found = places.find((place) => `${place.role}/${place.rank}` === rank || place.rank === rank);
  return found ? `${found.role}/${found.rank}` : "";
}

export class Address {
  /** Calls `onChange(address)` when the reader follows a link or goes back. */
  constructor(onChange) {
    this.now = parseAddress(location.hash);
    addEventListener("hashchange", () => {
      this.now = parseAddress(location.hash);
      onChange(this.now);
    });
  }

  /** Changes parts of the address without a new entry in the browser's history. */
  set(changes) {
    this.now = { ...this.now, ...changes };
    const hash = hashOf(this.now);
    if (location.hash !== hash) history.replaceState(null, "", hash);
  }

  /** The full address with these changes, to be shared. */
  link(changes) {
    return new URL(hashOf({ ...this.now, ...changes }), location.href).href;
  }
}

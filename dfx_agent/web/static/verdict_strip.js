// The banner: one line per verdict; a line with evidence opens.

import { element, reconcile, setHidden, setText } from "./element.js";
import { verdictsOf } from "./verdicts.js";

const SIGNS = { bad: "✕", warn: "▲", note: "i", good: "✓", quiet: "·" };

/** Updated in place, so that ticking seconds neither rebuild the list nor close what is open. */
export class VerdictStrip {
  constructor() {
    this.node = document.getElementById("verdicts");
    this.list = document.getElementById("verdict-list");
    this.summary = document.getElementById("verdicts-summary");
    this.rows = new Map();
  }

  update(feed, run, alerts) {
    const isLost = feed.state === "lost";
    const lines = isLost
      ? [unreachable(feed.snapshot)]
      : verdictsOf(feed.snapshot, run, feed.nowSeconds(), alerts);
    setHidden(this.node, !lines.length);
    reconcile(
      this.list,
      this.rows,
      lines.map((line) => line.key),
      () => new VerdictRow(),
    );
    for (const line of lines) this.rows.get(line.key).update(line);
    const numProblems = lines.filter((line) => ["bad", "warn"].includes(line.level)).length;
    const standing = run && run.standing.state !== "clear" ? run.standing.state : "no problem seen";
    const problems = numProblems === 1 ? "1 problem seen" : `${numProblems} problems seen`;
    setText(this.summary, numProblems ? problems : standing);
  }
}

/** What the agent said before is no verdict on now. */
function unreachable(snapshot) {
  const at = new Date(snapshot.time_seconds * 1000).toLocaleTimeString("en-GB");
  return {
    key: "unreachable",
    level: "bad",
    title: "The agent cannot be reached",
    detail: `Everything below is as it was at ${at}. The job is not affected; this page reconnects by itself.`,
    evidence: [],
  };
}

export class VerdictRow {
  constructor() {
    this.sign = element("span", "sign");
    this.sign.setAttribute("aria-hidden", "true");
    this.title = element("strong");
    this.detail = element("span", "detail");
    this.toggle = element("button", "toggle", { type: "button", hidden: true });
    this.toggle.addEventListener("click", () => this.open(!this.isOpen));
    this.evidence = element("div", "evidence", { hidden: true });
    this.link = element("a", "", { hidden: true });
    const says = element("p", "", {}, this.title, " ", this.detail, " ", this.link);
    const head = element("div", "verdict", {}, this.sign, says, this.toggle);
    this.node = element("li", "", {}, head, this.evidence);
    this.lines = new Map();
    this.open(false);
  }

  update(line) {
    if (this.node.dataset.level !== line.level) this.node.dataset.level = line.level;
    if (line.incident) {
      this.node.dataset.incident = line.incident.id;
      this.node.dataset.since = line.incident.since_seconds;
    }
    setText(this.sign, SIGNS[line.level]);
    setText(this.title, line.title);
    setText(this.detail, line.detail);
    setHidden(this.link, !line.link);
    if (line.link && this.link.href !== line.link.href) this.link.href = line.link.href;
    setText(this.link, line.link?.text ?? "");
    setHidden(this.toggle, !line.evidence.length);
    const keys = line.evidence.map((_, index) => index);
    reconcile(this.evidence, this.lines, keys, () => ({ node: element("p") }));
    line.evidence.forEach((text, index) => setText(this.lines.get(index).node, text));
    setHidden(this.evidence, !this.isOpen || !line.evidence.length);
  }

  open(isOpen) {
    this.isOpen = isOpen;
    this.toggle.setAttribute("aria-expanded", String(isOpen));
    setText(this.toggle, isOpen ? "Hide evidence" : "Evidence");
    setHidden(this.evidence, !isOpen);
  }
}

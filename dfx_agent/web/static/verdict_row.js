// One line of the banner: who and what, since when, at what cost, what to do, and its buttons.

import { element, reconcile, setCodeText, setHidden, setText } from "./element.js";

const SIGNS = { bad: "✕", warn: "▲", unsure: "?", note: "i", good: "✓", quiet: "·" };
const COPIED_MS = 2000;

export class VerdictRow {
  /** `actions` are {show(target), copy(incident)}; without an action there is no button. */
  constructor(actions = null) {
    this.sign = element("span", "sign");
    this.sign.setAttribute("aria-hidden", "true");
    this.title = element("strong");
    this.detail = element("span", "detail");
    this.link = element("a", "", { hidden: true });
    this.todo = element("span");
    this.action = element("p", "action", { hidden: true }, element("b", "", { textContent: "Do: " }), this.todo);
    this.bar = new SuspicionBar();
    this.toggle = button("toggle", () => this.open(!this.isOpen));
    this.show = button("show", () => actions.show(this.line.show));
    this.runbook = element("a", "runbook", { textContent: "Runbook", hidden: true });
    this.copy = button("copy", () => this.copyLine(actions));
    setText(this.copy, "Copy for chat");
    this.evidence = element("div", "evidence", { hidden: true, tabIndex: 0 });
    this.evidence.setAttribute("aria-label", "Evidence");
    this.evidence.setAttribute("role", "region");
    const says = element("p", "", {}, this.title, " ", this.detail, " ", this.link);
    const buttons = element("div", "buttons", {}, this.show, this.toggle, this.runbook, this.copy);
    const text = element("div", "says", {}, says, this.action, this.bar.node);
    const head = element("div", "verdict", {}, this.sign, text, buttons);
    this.node = element("li", "", {}, head, this.evidence);
    this.canAct = actions !== null;
    this.lines = new Map();
    this.open(false);
  }

  update(line) {
    this.line = line;
    if (this.node.dataset.level !== line.level) this.node.dataset.level = line.level;
    if (line.incident) {
      this.node.dataset.incident = line.incident.id;
      this.node.dataset.since = line.incident.since_seconds;
    }
    this.node.classList.toggle("incident", Boolean(line.incident) || line.level === "unsure");
    this.node.classList.toggle("doubtful", Boolean(line.isDoubtful));
    setText(this.sign, line.sign ?? SIGNS[line.level]);
    setCodeText(this.title, line.title);
    setText(this.detail, line.detail);
    setHidden(this.action, !line.action);
    setCodeText(this.todo, line.action ?? "");
    this.bar.update(line.bar ?? null);
    this.updateButtons(line);
    const keys = line.evidence.map((_, index) => index);
    reconcile(this.evidence, this.lines, keys, () => ({ node: element("p") }));
    line.evidence.forEach((text, index) => setText(this.lines.get(index).node, text));
    setHidden(this.evidence, !this.isOpen || !line.evidence.length);
  }

  updateButtons(line) {
    setHidden(this.link, !line.link);
    if (line.link && this.link.href !== line.link.href) this.link.href = line.link.href;
    setText(this.link, line.link?.text ?? "");
    setHidden(this.toggle, !line.evidence.length);
    setHidden(this.show, !line.show || !this.canAct);
    setText(this.show, line.show?.text ?? "");
    setHidden(this.copy, !line.incident || !this.canAct);
    setHidden(this.runbook, !line.runbook);
    const href = `runbook#${encodeURIComponent(line.runbook ?? "")}`;
    if (this.runbook.getAttribute("href") !== href) this.runbook.setAttribute("href", href);
  }

  open(isOpen) {
    this.isOpen = isOpen;
    this.toggle.setAttribute("aria-expanded", String(isOpen));
    setText(this.toggle, isOpen ? "Hide evidence" : "Evidence");
    setHidden(this.evidence, !isOpen);
  }

  async copyLine(actions) {
    const isCopied = await actions.copy(this.line.incident);
    setText(this.copy, isCopied ? "Copied" : "Not allowed here");
    setTimeout(() => setText(this.copy, "Copy for chat"), COPIED_MS);
  }
}

/** "64 s of 300 s": the age of a suspicion, and the age at which the verdict becomes `found`. */
class SuspicionBar {
  constructor() {
    this.fill = element("i");
    this.text = element("span", "num");
    this.node = element("div", "suspicion", { hidden: true }, element("div", "fill", {}, this.fill), this.text);
  }

  update(bar) {
    setHidden(this.node, !bar);
    if (!bar) return;
    const share = Math.min(1, bar.seconds / bar.limitSeconds);
    this.fill.style.width = `${(100 * share).toFixed(1)}%`;
    setText(this.text, `${Math.max(0, Math.round(bar.seconds))} s of ${Math.round(bar.limitSeconds)} s`);
  }
}

function button(className, onClick) {
  const node = element("button", className, { type: "button", hidden: true });
  node.addEventListener("click", onClick);
  return node;
}

// Which cards a view shows, and which card is first on the overview. A card names its views in
// `data-views`, and in `data-leads` the kind of incident that moves the card to the top.

import { VIEWS, hashOf } from "./address.js";
import { element, setHidden, setText } from "./element.js";

/** The text of a view without cards: what is missing, and how to get it. */
const EMPTY = {
  timeline: "No rank has sent a span yet. Stages appear with the first step of the job.",
  ranks: "No rank has appeared yet.",
  pipeline:
    "This job has no pipeline: it has one role and no rollout engine. " +
    "Queues and policy lag appear when the framework or dfx.queue() reports them.",
  memory:
    "No rank reports memory. The values come from torch in the job's processes and from the device driver.",
  health:
    "No training metric has been reported. Use the framework's logger, or call dfx.scalar(name, value).",
  data: "No batch has been compared. The framework's adapter records batches; in your own loop call dfx.ledger(boundary, batch).",
};

export class Views {
  constructor() {
    this.nav = document.getElementById("views");
    this.empty = document.getElementById("view-empty");
    this.cards = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("[data-views]")]);
    this.links = new Map(
      VIEWS.map(([name, text]) => [name, element("a", "", { textContent: text })]),
    );
    this.nav.replaceChildren(...this.links.values());
    this.shown = "";
  }

  /** `incidents` decide which card is first; cards of other views are hidden. */
  update(address, incidents) {
    for (const [name, link] of this.links) {
      const href = hashOf({ ...address, view: name });
      if (link.getAttribute("href") !== href) link.setAttribute("href", href);
      if (name === address.view) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const lead = address.view === "overview" ? (leadOf(incidents) ?? "") : "";
    const shown = `${address.view} ${lead}`;
    if (shown !== this.shown) {
      this.shown = shown;
      for (const card of this.cards) {
        const isLead = lead !== "" && card.dataset.leads === lead;
        const isShown = isLead || card.dataset.views.split(" ").includes(address.view);
        card.classList.toggle("elsewhere", !isShown);
        card.classList.toggle("leads", isLead);
      }
      document.body.dataset.view = address.view;
    }
    const isEmpty = this.cards.every((card) => card.hidden || card.classList.contains("elsewhere"));
    setHidden(this.empty, !isEmpty);
    setText(this.empty, isEmpty ? (EMPTY[address.view] ?? "") : "");
  }
}

/** The kind of the worst incident; they come worst first. Pure. */
export function leadOf(incidents) {
  return incidents.find((incident) => incident.state !== "noted")?.kind;
}

// The tooltip of the page: a title, a line of detail, and rows with one colour each.

import { element } from "./element.js";
import { duration } from "./format.js";
import { paint } from "./palette.js";

const MARGIN_PX = 14;
const node = element("div", "tooltip", { hidden: true });
node.setAttribute("role", "tooltip");
document.body.append(node);

/**
 * Shows the tooltip next to the point (client coordinates). `rows` are {kind, name, text, strong,
 * label}: a row without a kind has no colour, a row without a label shows the name.
 */
export function showTooltip(x, y, title, detail, rows = []) {
  node.replaceChildren(element("strong", "", { textContent: title }));
  if (detail) node.append(element("div", "quiet", { textContent: detail }));
  if (rows.length) node.append(element("div", "tooltip-rows", {}, ...rows.flatMap(rowNodes)));
  node.hidden = false;
  const { width, height } = node.getBoundingClientRect();
  const left = x + MARGIN_PX + width > innerWidth ? x - MARGIN_PX - width : x + MARGIN_PX;
  const top = y + MARGIN_PX + height > innerHeight ? y - MARGIN_PX - height : y + MARGIN_PX;
  node.style.left = `${Math.max(4, left)}px`;
  node.style.top = `${Math.max(4, top)}px`;
}

export function hideTooltip() {
  node.hidden = true;
}

/** Rows for the parts of a split: seconds and share of the wall time. */
export function partRows(parts, wallSeconds, chosen = null) {
  return parts.map((part) => ({
    kind: part.kind,
    name: part.name,
    strong: part === chosen,
    text: `${duration(part.seconds)}  ${Math.round((100 * part.seconds) / wallSeconds)} %`,
  }));
}

function rowNodes(row) {
  const swatch = element("i", row.kind ? "swatch" : "");
  if (row.kind) paint(swatch, row.kind, row.name);
  const strong = row.strong ? "strong" : "";
  const label = row.label ?? (row.kind === "wait" ? `wait: ${row.name}` : row.name);
  return [
    swatch,
    element("span", strong, { textContent: label }),
    element("span", `num ${strong}`, { textContent: row.text }),
  ];
}

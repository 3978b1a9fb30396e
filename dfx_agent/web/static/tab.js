// Title and icon of the browser's tab: a problem is visible from another tab.

const SIGNS = { bad: "✕", warn: "▲" };
const ICONS = { bad: "static/favicon-bad.svg", warn: "static/favicon-warn.svg" };
const ICON = "static/favicon.svg";

/** "✕ hang rank 1 · run", or the step; `lines` are the banner's lines, worst first. Pure. */
export function tabTitle(lines, run, step) {
  const name = run?.run ?? "dfx-agent";
  const worst = worstOf(lines);
  if (worst) return [`${SIGNS[worst.level]} ${subjectOf(worst)}`, name].join(" · ");
  return step === null || !run ? name : `step ${step} · ${name}`;
}

function worstOf(lines) {
  return lines.find((line) => line.level === "bad") ?? lines.find((line) => line.level === "warn");
}

function subjectOf({ incident, title }) {
  if (!incident) return title;
  const { kind, ranks } = incident;
  if (!ranks.length) return kind;
  return ranks.length === 1 ? `${kind} rank ${ranks[0]}` : `${kind} ${ranks.length} ranks`;
}

export function showTab(lines, run, step) {
  const title = tabTitle(lines, run, step);
  if (document.title !== title) document.title = title;
  const icon = ICONS[worstOf(lines)?.level] ?? ICON;
  const link = document.querySelector("link[rel='icon']");
  if (link.getAttribute("href") !== icon) link.setAttribute("href", icon);
}

// The colours of style.css for code that draws on a canvas; follows the light and dark themes.

const NAMES = [
  "text", "quiet", "line", "surface", "idle", "hatch", "bad", "warn", "accent", "less", "more", "much",
];
const media = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();
let colors = null;

/** {text, quiet, line, surface, ...} of the current theme. */
export function themeColors() {
  if (!colors) {
    const style = getComputedStyle(document.documentElement);
    colors = Object.fromEntries(
      NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]),
    );
  }
  return colors;
}

export function onThemeChange(listener) {
  listeners.add(listener);
}

media.addEventListener("change", () => {
  colors = null;
  for (const listener of listeners) listener();
});

/** "#1f6fb8" -> [31, 111, 184]. */
export function parseColor(text) {
  return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
}

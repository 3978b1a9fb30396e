// The colours of style.css for those who draw on a canvas; follows light and dark.

const NAMES = ["text", "quiet", "line", "surface", "idle", "hatch", "bad", "warn", "accent"];
const media = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();
let colors = null;

/** {text, quiet, line, surface, ...} of the present theme. */
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

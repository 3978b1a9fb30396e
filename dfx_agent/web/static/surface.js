// A canvas that is sharp on every screen and uses CSS pixels as coordinates.

/** Sizes the canvas to its box and `height`; returns a cleared context. */
export function prepareSurface(canvas, height) {
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  if (canvas.style.height !== `${height}px`) canvas.style.height = `${height}px`;
  const [pixelWidth, pixelHeight] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== pixelWidth || canvas.height !== pixelHeight) {
    canvas.width = pixelWidth;
    canvas.height = pixelHeight;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

export const AXIS_FONT = '11px system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif';

export function drawText(context, text, x, y, color, align = "left") {
  context.font = AXIS_FONT;
  context.textBaseline = "middle";
  context.textAlign = align;
  context.fillStyle = color;
  context.fillText(text, x, y);
}

export function drawLine(context, x0, y0, x1, y1, color, width = 1) {
  context.strokeStyle = color;
  context.lineWidth = width;
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}

/** A round tick distance (also in minutes) that divides `range` into about `parts` parts. */
export function niceStep(range, parts) {
  const rough = range / parts;
  if (rough > 20) {
    const minutes = [30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400];
    return minutes.find((step) => step >= rough) ?? 86400;
  }
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
}

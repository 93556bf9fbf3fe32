/** Plots with a scale, on canvas: newest value at the right, colours from the style sheet. */

import { fitCanvas, unbroken } from "./plots.js";

const LABEL_WIDTH = 56; // px, left of the values
const MARGIN = 8; // px, above and below the values
const NUM_TICKS = 3;
const STEPS = [1, 2, 2.5, 5, 10]; // of a scale, times a power of ten
const LINE_WIDTHS = { thin: 1, dashed: 1.5 };
const FONT = "11px system-ui, -apple-system, 'Segoe UI', sans-serif";

export class Chart {
  #canvas;
  #unit;
  #points;
  #minimumMax;
  #series;
  #values;
  #emptyText;

  /**
   * `series` is [{kind, colour}] from back to front: kind is bars, line, thin, dashed or area,
   * `colour` a property of the style sheet. `minimumMax` keeps small values from filling the plot;
   * `emptyText` stands where there is nothing to draw.
   */
  constructor(canvas, { unit, points, minimumMax, series, emptyText }) {
    this.#canvas = canvas;
    this.#unit = unit;
    this.#points = points;
    this.#minimumMax = minimumMax;
    this.#series = series;
    this.#values = series.map(() => []);
    this.#emptyText = emptyText;
  }

  /** Draws the newest of each series; null leaves a gap. */
  show(...values) {
    this.#values = values.map((series) => series.slice(-this.#points));
    if (this.#canvas.clientWidth > 0) this.#draw(); // else in a tab that is not shown
  }

  #draw() {
    const context = fitCanvas(this.#canvas);
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    const known = this.#values.flat().filter((value) => value !== null);
    const { max, ticks } = scaleOf(Math.max(this.#minimumMax, ...known));
    const style = getComputedStyle(this.#canvas);
    const y = (value) => height - MARGIN - (value / max) * (height - 2 * MARGIN);
    drawScale(context, { ticks, y, width, unit: this.#unit, style });
    if (known.length === 0) {
      drawCentred(context, this.#emptyText, { width, height, style });
      return;
    }
    const slot = (width - LABEL_WIDTH) / this.#points;
    this.#series.forEach(({ kind, colour }, index) => {
      const points = this.#values[index];
      const x = (position) => width - (points.length - position - 0.5) * slot;
      context.fillStyle = context.strokeStyle = style.getPropertyValue(colour);
      if (kind === "bars") drawBars(context, points, { x, y, slot });
      else drawLines(context, points, { x, y, kind });
    });
  }
}

/** A round number at or above `value`, and the values at which lines are drawn. */
export function scaleOf(value) {
  const rough = value / NUM_TICKS;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = STEPS.find((factor) => factor * power >= rough) * power;
  const ticks = [0];
  while (ticks.at(-1) < value) ticks.push(ticks.length * step);
  return { max: ticks.at(-1), ticks };
}

function drawScale(context, { ticks, y, width, unit, style }) {
  context.font = FONT;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.lineWidth = 1;
  context.strokeStyle = style.getPropertyValue("--line");
  context.fillStyle = style.getPropertyValue("--muted");
  ticks.forEach((tick, index) => {
    const height = Math.round(y(tick)) + 0.5;
    context.beginPath();
    context.moveTo(LABEL_WIDTH, height);
    context.lineTo(width, height);
    context.stroke();
    const isTop = index === ticks.length - 1;
    context.fillText(isTop && unit ? `${tick} ${unit}` : String(tick), LABEL_WIDTH - 7, height);
  });
}

function drawCentred(context, text, { width, height, style }) {
  context.font = FONT.replace("11px", "13px");
  context.textAlign = "center";
  context.fillStyle = style.getPropertyValue("--muted");
  const middle = LABEL_WIDTH + (width - LABEL_WIDTH) / 2;
  const shownWidth = context.measureText(text).width + 16;
  context.save();
  context.fillStyle = style.getPropertyValue("--surface");
  context.fillRect(middle - shownWidth / 2, height / 2 - 11, shownWidth, 22);
  context.restore();
  context.fillText(text, middle, height / 2);
}

function drawBars(context, points, { x, y, slot }) {
  const floor = y(0);
  const width = Math.max(1, slot * 0.72);
  points.forEach((value, position) => {
    if (value === null) return;
    const top = Math.min(y(value), floor - 1); // a gap of 0 is seen as well
    context.fillRect(x(position) - width / 2, top, width, floor - top);
  });
}

function drawLines(context, points, { x, y, kind }) {
  context.lineWidth = LINE_WIDTHS[kind] ?? 2;
  context.lineJoin = "round";
  context.setLineDash(kind === "dashed" ? [5, 4] : []);
  for (const run of unbroken(points)) {
    context.beginPath();
    for (const { value, index } of run) context.lineTo(x(index), y(value));
    context.stroke();
    if (kind !== "area") continue;
    context.lineTo(x(run.at(-1).index), y(0));
    context.lineTo(x(run[0].index), y(0));
    context.globalAlpha = 0.14;
    context.fill();
    context.globalAlpha = 1;
  }
  context.setLineDash([]);
}

/** Small live plots on canvas: newest value at the right, colours from the style sheet. */

const POINTS = 60;

export class Plot {
  #canvas;
  #series;
  #kind;
  #points;
  #minimumMax;

  /**
   * `kind` is line or bars; `points` is how many values fit; `minimumMax` keeps small values from
   * filling the plot.
   */
  constructor(canvas, { kind = "line", series = 1, points = POINTS, minimumMax = 1 } = {}) {
    this.#canvas = canvas;
    this.#kind = kind;
    this.#points = points;
    this.#minimumMax = minimumMax;
    this.#series = Array.from({ length: series }, () => []);
  }

  /** One new value per series; null leaves a gap. */
  push(...values) {
    values.forEach((value, index) => {
      const points = this.#series[index];
      points.push(value);
      if (points.length > this.#points) points.shift();
    });
    this.draw();
  }

  /** Replaces everything by the newest of `values`; for plots of one series. */
  show(values) {
    this.#series[0] = values.slice(-this.#points);
    this.draw();
  }

  clear() {
    for (const points of this.#series) points.length = 0;
    this.draw();
  }

  draw() {
    if (this.#canvas.clientWidth === 0) return; // in a tab that is not shown
    const context = fitCanvas(this.#canvas);
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    const max = Math.max(this.#minimumMax, ...this.#series.flat().filter((v) => v !== null)) * 1.1;
    const style = getComputedStyle(this.#canvas);
    const colours = [style.getPropertyValue("--plot-1"), style.getPropertyValue("--plot-2")];
    // Last series first, so that the first one lies on top.
    for (let index = this.#series.length - 1; index >= 0; index -= 1) {
      const place = (value, position, count) => ({
        x: width - ((count - 1 - position) * width) / (this.#points - 1),
        y: height - 1 - (value / max) * (height - 2),
      });
      const draw = this.#kind === "bars" ? drawBars : drawLine;
      draw(context, this.#series[index], place, height, colours[index], width / this.#points);
    }
  }
}

/** An empty context for the canvas as it is laid out, in CSS pixels. */
export function fitCanvas(canvas) {
  const ratio = globalThis.devicePixelRatio || 1;
  canvas.width = Math.round(canvas.clientWidth * ratio);
  canvas.height = Math.round(canvas.clientHeight * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return context;
}

function drawLine(context, points, place, height, colour) {
  for (const run of unbroken(points)) {
    const path = run.map(({ value, index }) => place(value, index, points.length));
    context.beginPath();
    for (const { x, y } of path) context.lineTo(x, y);
    context.strokeStyle = colour;
    context.lineWidth = 1.5;
    context.lineJoin = "round";
    context.stroke();
    context.lineTo(path.at(-1).x, height);
    context.lineTo(path[0].x, height);
    context.globalAlpha = 0.14;
    context.fillStyle = colour;
    context.fill();
    context.globalAlpha = 1;
  }
}

function drawBars(context, points, place, height, colour, slot) {
  context.fillStyle = colour;
  points.forEach((value, index) => {
    if (!value) return;
    const { x, y } = place(value, index, points.length);
    context.fillRect(x - slot * 0.8, y, slot * 0.7, height - y);
  });
}

/** Runs of neighbouring values without a gap. */
export function unbroken(points) {
  const runs = [];
  let run = null;
  points.forEach((value, index) => {
    if (value === null) {
      run = null;
      return;
    }
    if (run === null) runs.push((run = []));
    run.push({ value, index });
  });
  return runs;
}

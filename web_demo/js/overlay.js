/**
 * The stage: draws a frame and the result that belongs to it, together.
 *
 * `show` replaces what waits to be drawn, so a slow display skips to the newest. A result older
 * than the picture on the stage is never drawn, and never on another frame than its own.
 */

const FACE_COLOUR = "#2dd4bf";
const HALO = "rgba(4, 12, 20, 0.65)";
const FONT = '600 13px system-ui, -apple-system, "Segoe UI", sans-serif';
const MAX_CLASSES = 3;

export class Stage {
  #canvas;
  #context;
  #onDrawn;
  #waiting = null; // {seq, bitmap, data}
  #shown = null;
  #isScheduled = false;

  /** `onDrawn(seq, data)` is called for every result that reached the screen. */
  constructor(canvas, onDrawn) {
    this.#canvas = canvas;
    this.#context = canvas.getContext("2d", { alpha: false });
    this.#onDrawn = onDrawn;
    new ResizeObserver(() => this.#redraw()).observe(canvas);
  }

  /** Takes ownership of `bitmap` and closes it when it is not needed any more. */
  show({ seq, bitmap, data }) {
    const newest = this.#waiting?.seq ?? this.#shown?.seq ?? -1;
    if (seq <= newest) {
      bitmap.close();
      return;
    }
    this.#waiting?.bitmap.close();
    this.#waiting = { seq, bitmap, data };
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    requestAnimationFrame(() => this.#onAnimationFrame());
  }

  /** Empties the stage; the next frame may have any seq. */
  clear() {
    this.#waiting?.bitmap.close();
    this.#shown?.bitmap.close();
    this.#waiting = this.#shown = null;
  }

  #onAnimationFrame() {
    this.#isScheduled = false;
    if (this.#waiting === null) return; // cleared in between
    this.#shown?.bitmap.close();
    this.#shown = this.#waiting;
    this.#waiting = null;
    this.#redraw();
    this.#onDrawn(this.#shown.seq, this.#shown.data);
  }

  #redraw() {
    if (this.#shown === null) return;
    const { bitmap, data } = this.#shown;
    const ratio = this.#fit(bitmap);
    const context = this.#context;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(bitmap, 0, 0, this.#canvas.width, this.#canvas.height);
    // From here on in CSS pixels, so that lines and text look alike on every display.
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const width = this.#canvas.width / ratio;
    drawResult(context, data, width / (data.width || bitmap.width), width, this.#canvas.height / ratio);
  }

  /** Gives the canvas the picture's shape and the display's resolution; returns the pixel ratio. */
  #fit(bitmap) {
    const { clientWidth, clientHeight } = this.#canvas;
    const ratio = globalThis.devicePixelRatio || 1;
    const scale = Math.min(clientWidth / bitmap.width, clientHeight / bitmap.height) || 1;
    const width = Math.max(1, Math.round(bitmap.width * scale * ratio));
    const height = Math.max(1, Math.round(bitmap.height * scale * ratio));
    if (this.#canvas.width !== width || this.#canvas.height !== height) {
      this.#canvas.width = width;
      this.#canvas.height = height;
    }
    return ratio;
  }
}

/** Draws objects and classes; `scale` is CSS pixels per pixel of the sent picture. */
export function drawResult(context, data, scale, width, height) {
  context.font = FONT;
  context.textBaseline = "middle";
  for (const object of data.objects ?? []) drawObject(context, object, scale, width);
  if (data.classes?.length > 0) drawClasses(context, data.classes.slice(0, MAX_CLASSES), height);
}

/** One colour per label, the same in every frame. */
export function colourOf(label) {
  if (label === "face") return FACE_COLOUR;
  let hash = 0;
  for (const character of label) hash = (hash * 31 + character.codePointAt(0)) % 360;
  return `hsl(${hash} 90% 66%)`;
}

/** One line about a result, for people who do not see the picture. */
export function describe(data) {
  if (data.classes?.length > 0) {
    const [{ label, score }] = data.classes;
    return `${label}, ${percent(score)}`;
  }
  const objects = data.objects ?? [];
  if (objects.length === 0) return "nothing found";
  const counts = new Map();
  for (const { label } of objects) counts.set(label, (counts.get(label) ?? 0) + 1);
  const words = [...counts].map(([label, count]) => (count === 1 ? label : `${count} × ${label}`));
  return words.join(", ");
}

export function percent(share) {
  return `${Math.round(share * 100)} %`;
}

function drawObject(context, { label, score, box, landmarks }, scale, width) {
  const colour = colourOf(label);
  const [left, top, right, bottom] = box.map((value) => value * scale);
  context.lineJoin = "round";
  // A dark line under a bright one stays visible on any picture.
  for (const [stroke, lineWidth] of [[HALO, 5], [colour, 2.5]]) {
    context.strokeStyle = stroke;
    context.lineWidth = lineWidth;
    context.strokeRect(left, top, right - left, bottom - top);
  }
  for (const [x, y] of landmarks ?? []) drawDot(context, x * scale, y * scale, colour);
  drawTag(context, `${label} ${percent(score)}`, left, top, width, colour);
}

function drawDot(context, x, y, colour) {
  context.beginPath();
  context.arc(x, y, 3, 0, 2 * Math.PI);
  context.fillStyle = colour;
  context.fill();
  context.strokeStyle = HALO;
  context.lineWidth = 1;
  context.stroke();
}

function drawTag(context, text, left, top, width, colour) {
  const tagWidth = context.measureText(text).width + 12;
  const tagHeight = 20;
  const x = Math.max(0, Math.min(left - 1, width - tagWidth));
  const y = top >= tagHeight + 4 ? top - tagHeight - 4 : top + 4;
  context.fillStyle = HALO;
  context.beginPath();
  context.roundRect(x, y, tagWidth, tagHeight, 6);
  context.fill();
  context.fillStyle = colour;
  context.fillText(text, x + 6, y + tagHeight / 2 + 0.5);
}

function drawClasses(context, classes, height) {
  const lineHeight = 24;
  const panelWidth = 230;
  const top = height - 12 - classes.length * lineHeight;
  context.fillStyle = HALO;
  context.beginPath();
  context.roundRect(10, top - 6, panelWidth, classes.length * lineHeight + 8, 8);
  context.fill();
  classes.forEach(({ label, score }, index) => {
    const y = top + index * lineHeight;
    context.fillStyle = colourOf(label);
    context.fillRect(18, y + 18, (panelWidth - 16) * score, 2);
    context.fillStyle = "#ffffff";
    context.fillText(label, 18, y + 9, panelWidth - 70);
    context.textAlign = "right";
    context.fillText(percent(score), panelWidth + 2, y + 9);
    context.textAlign = "left";
  });
}

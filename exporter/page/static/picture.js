// Stages over time on a canvas: one row a stage, the height of a color in a cell is its share.
//
// Colors and stripes are the style sheet's variables, the same as the offline report's.

import { CELLS } from "./cells.js";
import { clock } from "./words.js";

const STATES = ["working", "waiting", "resident", "idle", "unknown"];
const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120];
const GAP = 3;
const AXIS = 18;
const STRIP = 10;

/** Surfaces and stripes as the style sheet has them now. */
function looks() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  const found = {};
  for (const state of STATES) {
    found[state] = {
      surface: value(`--${state}`),
      lines: value(`--${state}-lines`),
      period: Number(value(`--${state}-period`) || 0),
      line: Number(value(`--${state}-line`) || 0),
      upright: value(`--${state}-upright`) === "1",
    };
  }
  return { states: found, mark: value("--mark"), soft: value("--soft"), frame: value("--line") };
}

/** Paints a state: its color, or a pattern of its stripes. */
function paint(context, look, height, ratio) {
  if (!look.period) return look.surface;
  const period = Math.max(Math.round(look.period * height * ratio), 3);
  const tile = document.createElement("canvas");
  tile.width = tile.height = period;
  const pen = tile.getContext("2d");
  pen.fillStyle = look.surface;
  pen.fillRect(0, 0, period, period);
  pen.fillStyle = look.lines;
  const line = Math.max(Math.round(period * look.line), 1);
  if (look.upright) pen.fillRect(0, 0, line, period);
  else pen.fillRect(0, 0, period, line);
  const pattern = context.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  return pattern;
}

/** The small samples of a legend. */
export function drawSample(canvas, state) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = 32 * ratio;
  canvas.height = 18 * ratio;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.fillStyle = paint(context, looks().states[state], 28, ratio);
  context.fillRect(0, 0, 32, 18);
}

/** A picture in an element: names at the left, a canvas, shares at the right. */
export class Picture {
  /** `cellTicks` 20 ms make a cell; with `strip` there is room for marks above the rows. */
  constructor(host, cellTicks, strip = false) {
    this.host = host;
    this.ticks = cellTicks;
    this.strip = strip;
    this.names = document.createElement("ul");
    this.names.className = "names";
    this.canvas = document.createElement("canvas");
    this.shares = document.createElement("ul");
    this.shares.className = "shares";
    this.shares.setAttribute("aria-hidden", "true");
    host.append(this.names, this.canvas, this.shares);
  }

  get cellSeconds() {
    return this.ticks / CELLS;
  }

  /** Height of a row: many stages get thin ones. */
  #rowHeight(count) {
    return Math.max(Math.min(28, Math.floor(420 / Math.max(count, 1))), 6);
  }

  /**
   * Draws the stretch of time that ends before `end` (epoch seconds).
   *
   * rows: [{rank, name, share}]; cursor: {rank, at} or null; span: a stretch marked above the rows.
   */
  draw(timeline, rows, seconds, end, cursor, span) {
    const ratio = window.devicePixelRatio || 1;
    const height = this.#rowHeight(rows.length);
    this.top = this.strip ? STRIP : 0;
    this.#label(this.names, rows.map((row) => row.name), height);
    this.#label(this.shares, rows.map((row) => row.share), height);
    const width = Math.max(Math.floor(this.host.clientWidth - this.#sides()), 60);
    this.pitch = height + GAP;
    this.rows = rows;
    this.from = end - seconds;
    this.seconds = seconds;
    this.width = width;
    const tall = this.top + rows.length * this.pitch + AXIS;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${tall}px`;
    this.canvas.width = width * ratio;
    this.canvas.height = tall * ratio;
    Object.assign(this.canvas.dataset, {
      from: this.from, seconds, rows: rows.length, top: this.top, pitch: this.pitch, rowHeight: height, cell: this.cellSeconds,
    });
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    const found = looks();
    const paints = {};
    for (const state of STATES) paints[state] = paint(context, found.states[state], height, ratio);
    rows.forEach((row, index) => {
      this.#row(context, paints, timeline, row.rank, this.top + index * this.pitch, height, ratio);
    });
    context.strokeStyle = found.frame;
    rows.forEach((_, index) => context.strokeRect(0.5, this.top + index * this.pitch - 0.5, width - 1, height + 1));
    this.#axis(context, found, tall);
    if (span) this.#mark(context, found, span);
    if (cursor) this.#cursor(context, found, cursor, height);
  }

  #sides() {
    const space = 2 * parseFloat(getComputedStyle(this.host).columnGap || "0");
    return this.names.offsetWidth + this.shares.offsetWidth + space + 1;
  }

  #label(list, texts, height) {
    while (list.children.length > texts.length) list.lastChild.remove();
    while (list.children.length < texts.length) list.append(document.createElement("li"));
    list.style.paddingTop = `${this.top}px`;
    texts.forEach((text, index) => {
      const item = list.children[index];
      if (item.textContent !== text) item.textContent = text;
      item.style.height = `${height}px`;
      item.style.marginBottom = `${GAP}px`;
    });
  }

  #row(context, paints, timeline, rank, top, height, ratio) {
    const first = Math.round(this.from * CELLS);
    const count = Math.round((this.seconds * CELLS) / this.ticks);
    // On whole pixels of the screen: no seams between cells.
    const at = (cell) => Math.round((cell / count) * this.width * ratio) / ratio;
    context.save();
    context.translate(0, top + height); // stripes begin at the foot of each row
    for (let cell = 0; cell < count; cell += 1) {
      const start = first + cell * this.ticks;
      const shares = timeline.shares(rank, start, start + this.ticks);
      const left = at(cell);
      const wide = at(cell + 1) - left;
      let bottom = 0;
      for (const state of ["working", "waiting", "resident", "idle", "unknown"]) {
        if (shares[state] < 0.004) continue;
        let share = shares[state] * height;
        if (state === "unknown") share = height + bottom;
        context.fillStyle = paints[state];
        context.fillRect(left, bottom - share, wide, share);
        bottom -= share;
      }
    }
    context.restore();
  }

  #x(at) {
    return ((at - this.from) / this.seconds) * this.width;
  }

  #axis(context, found, tall) {
    const most = Math.max(Math.floor(this.width / 84), 2);
    const step = STEPS.find((each) => this.seconds / each <= most) ?? 120;
    context.fillStyle = found.soft;
    context.strokeStyle = found.soft;
    context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const top = tall - AXIS;
    for (let at = Math.ceil(this.from / step) * step; at <= this.from + this.seconds + 1e-6; at += step) {
      const x = this.#x(at);
      const text = step < 1 ? clock(at, true).slice(0, -2) : clock(at);
      const half = context.measureText(text).width / 2;
      context.fillRect(Math.round(x), top, 1, 4);
      if (x >= half && x + half <= this.width) context.fillText(text, x - half, top + 15);
    }
  }

  #mark(context, found, span) {
    const [left, right] = [Math.max(this.#x(span[0]), 1), Math.min(this.#x(span[1]), this.width - 1)];
    if (right <= 0 || left >= this.width) return;
    context.strokeStyle = found.mark;
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(left, STRIP - 2);
    context.lineTo(left, 2);
    context.lineTo(right, 2);
    context.lineTo(right, STRIP - 2);
    context.stroke();
  }

  #cursor(context, found, cursor, height) {
    const index = this.rows.findIndex((row) => row.rank === cursor.rank);
    if (index < 0 || cursor.at < this.from || cursor.at >= this.from + this.seconds) return;
    const left = this.#x(Math.floor(cursor.at / this.cellSeconds + 1e-6) * this.cellSeconds);
    const wide = Math.max((this.cellSeconds / this.seconds) * this.width, 4);
    context.strokeStyle = found.mark;
    context.lineWidth = 1;
    context.setLineDash([2, 2]);
    context.strokeRect(left - 0.5, this.top + 0.5, wide + 1, this.rows.length * this.pitch - GAP);
    context.setLineDash([]);
    context.lineWidth = 2;
    context.strokeRect(left - 1, this.top + index * this.pitch - 1, wide + 2, height + 2);
  }

  /** Stage and instant under a pointer; null beside the rows. */
  under(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const index = Math.floor((event.clientY - box.top - this.top) / this.pitch);
    if (x < 0 || x >= box.width || index < 0 || !this.rows || index >= this.rows.length) return null;
    return { rank: this.rows[index].rank, at: this.from + (x / box.width) * this.seconds };
  }
}

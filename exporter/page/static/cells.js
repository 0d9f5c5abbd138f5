// Settled seconds as they come, kept for ten minutes; sums over any stretch of them. Draws nothing.
//
// A second of a stage is four planes of one byte a cell of 20 ms: observed, working, waiting (in
// 250ths of the cell) and the method. What is not observed is unknown, never idle.

export const CELLS = 50;
const KEPT_SECONDS = 600;

/** How a stretch of time is divided; the rest of 1 was not seen. */
export const nothing = () => ({ working: 0, waiting: 0, resident: 0, idle: 0, unknown: 1 });

function decoded(text) {
  const packed = atob(text);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i += 1) bytes[i] = packed.charCodeAt(i);
  return bytes;
}

/** The time of one pipeline. */
export class Timeline {
  constructor() {
    this.seconds = new Map();
    this.newest = null;
    this.ranks = new Set();
  }

  /** Takes the seconds of one answer; a second that came before is replaced. */
  take(seconds, format) {
    const fresh = new Set();
    for (const each of seconds) {
      const parts = fresh.has(each.second) ? this.seconds.get(each.second).parts : [];
      fresh.add(each.second);
      const stages = new Map();
      for (const [rank, text] of Object.entries(each.cells ?? {})) {
        stages.set(Number(rank), decoded(text));
        this.ranks.add(Number(rank));
      }
      parts.push(stages);
      this.seconds.set(each.second, { parts, watts: each.watts ?? {}, batch: each.batch ?? {} });
      if (this.newest === null || each.second > this.newest) this.newest = each.second;
    }
    this.units = format.units;
    this.tells = format.methods.map((method) => format.tells_waiting.includes(method));
    for (const second of this.seconds.keys()) {
      if (second < this.newest - KEPT_SECONDS) this.seconds.delete(second);
    }
  }

  /** How a stage spent the cells from one number of cell since the epoch before another. */
  shares(rank, first, stop) {
    const sum = { working: 0, waiting: 0, resident: 0, idle: 0, unknown: 0 };
    for (let at = first; at < stop; at += 1) {
      const known = this.seconds.get(Math.floor(at / CELLS));
      if (known === undefined) continue;
      const cell = at % CELLS;
      for (const stages of known.parts) {
        const planes = stages.get(rank);
        if (planes !== undefined) this.#add(sum, planes, cell);
      }
    }
    const whole = this.units * Math.max(stop - first, 1);
    for (const state of ["working", "waiting", "resident", "idle"]) sum[state] /= whole;
    sum.unknown = Math.max(1 - sum.working - sum.waiting - sum.resident - sum.idle, 0);
    return sum;
  }

  #add(sum, planes, cell) {
    const seen = planes[cell];
    const works = Math.min(planes[CELLS + cell], seen);
    if (this.tells[planes[3 * CELLS + cell]]) {
      const waits = Math.min(planes[2 * CELLS + cell], seen - works);
      sum.working += works;
      sum.waiting += waits;
      sum.idle += seen - works - waits;
    } else {
      sum.resident += works;
      sum.idle += seen - works;
    }
  }

  /** What else is known of a stage in a second. */
  beside(rank, second) {
    const known = this.seconds.get(second);
    return { watts: known?.watts[rank] ?? null, batch: known?.batch[rank] ?? null };
  }

  /** Whether a second of a stretch is not here, of those that may have settled. */
  lacks(first, stop) {
    for (let second = first; second < Math.min(stop, this.newest + 1); second += 1) {
      if (!this.seconds.has(second)) return true;
    }
    return false;
  }
}

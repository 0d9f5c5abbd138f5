// Figures, tables and lists beside the picture. Text from outside is only ever set as text.

import { duration, number, percent, unit, UNKNOWN, words } from "./words.js";

const SHOWN_TEXT = 400;
const MOST_MISSING = 3;
/** Controls, and what turns the direction of text around: a name could disguise what follows it. */
const INVISIBLE =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;

export const byId = (id) => document.getElementById(id);

/** Sets a text, only if it changed: what is selected stays so. */
export function say(element, text) {
  let shown = String(text).replace(INVISIBLE, "\ufffd");
  if (shown.length > SHOWN_TEXT) shown = `${shown.slice(0, SHOWN_TEXT)} …`;
  if (element.textContent !== shown) element.textContent = shown;
}

/** As many children as there are items, made by `make` and filled by `fill`. */
export function fillList(parent, items, make, fill) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  while (parent.children.length < items.length) parent.append(make());
  items.forEach((item, index) => fill(parent.children[index], item));
}

function fillRows(body, rows, numeric) {
  fillList(
    body,
    rows,
    () => document.createElement("tr"),
    (line, cells) =>
      fillList(
        line,
        cells.map((cell, index) => [cell, index]),
        () => document.createElement(line.children.length ? "td" : "th"),
        (box, [cell, index]) => {
          if (index === 0) box.scope = "row";
          box.className = numeric(index) ? "n" : "";
          say(box, cell);
        },
      ),
  );
}

function fillPairs(list, pairs) {
  fillList(
    list,
    pairs,
    () => {
      const pair = document.createElement("div");
      pair.append(document.createElement("dt"), document.createElement("dd"));
      return pair;
    },
    (pair, [name, value]) => {
      say(pair.children[0], name);
      say(pair.children[1], value);
    },
  );
}

/** The sentence: the verdict where there is one, else the figures. */
export function showVerdict(said) {
  const box = byId("verdict");
  const verdict = said?.verdict ?? null;
  const told = verdict !== null && verdict.verdict !== "cannot_tell";
  box.className = `verdict ${!told ? "open" : verdict.verdict === "healthy" ? "healthy" : "fault"}`;
  say(byId("verdict-title"), told ? words(verdict.verdict) : "What is seen");
  say(byId("sentence"), told ? verdict.sentence : (said?.figures ?? ""));
  let more = "";
  if (told) {
    const gain = verdict.verdict === "healthy" ? "" : ` Expected gain: ${verdict.gain}.`;
    const over = verdict.window_seconds === null ? "" : `, over ${duration(verdict.window_seconds)}`;
    more = `Confidence ${number(verdict.confidence, 2)} of 1${over}.${gain}`;
  } else if (verdict !== null) {
    more = `No verdict: ${verdict.sentence}`;
  }
  say(byId("more"), more);
  const next = told && verdict.verdict !== "healthy" ? verdict.advice[0] : undefined;
  const open = verdict !== null && !told ? verdict.missing.slice(0, MOST_MISSING).join("; ") : "";
  say(byId("advice"), next ? `Try next: ${next}` : open ? `Not known: ${open}` : "");
  return told ? `${words(verdict.verdict)}. ${verdict.sentence}` : (said?.figures ?? "");
}

/** By these methods work is an upper bound. */
const BOUNDS = ["forward_occupancy", "residency"];
const isBound = (stage) => BOUNDS.includes(stage.method);
const MODES = ["prefill", "decode"];
const sum = (values) => (values.length && values.every((each) => each !== null) ? values.reduce((a, b) => a + b, 0) : null);
const highest = (values) => (values.some((each) => each !== null) ? Math.max(...values.filter((each) => each !== null)) : null);

export function showFigures(pipeline, said) {
  const slots = pipeline.slots;
  const rates = pipeline.stages.map((stage) => stage.generation_tokens_per_second);
  const bound = pipeline.stages.some(isBound);
  const most = bound && pipeline.occupancy_ratio !== null ? "≤ " : "";
  const least = bound && pipeline.bubble_ratio !== null ? "≥ " : "";
  fillPairs(byId("figures"), [
    ["stages work", most + percent(pipeline.occupancy_ratio)],
    ["bubble in flight", least + percent(pipeline.bubble_ratio)],
    ["effective micro-batches", slots.effective === null ? UNKNOWN : `${number(slots.effective, 1)} of ${slots.slots ?? UNKNOWN}`],
    ["requests running", number(slots.running_requests)],
    ["tokens/s", number(highest(rates))],
    ["requests queued", number(said?.queued ?? null)],
  ]);
}

const METHODS = { gpm: "GPM", power: "power", forward_occupancy: "SGLang", residency: "residency" };

const COLUMNS = [
  ["stage", (s) => `${s.pp_rank}`, false],
  ["batch", (s) => batch(s), true],
  ["running", (s) => number(s.running_reqs), true],
  ["KV usage", (s) => percent(highest(Object.values(s.token_usage_ratio))), true],
  ["resident", (s) => percent(s.gpu_utilization_ratio), true],
  ["working", (s) => most(s, s.working_ratio), true],
  ["waiting", (s) => percent(s.waiting_ratio), true],
  ["mean work", (s) => most(s, s.mean_working_ratio), true],
  ["known by", (s) => METHODS[s.method] ?? UNKNOWN, false],
  ["power", (s, g) => unit(sum(g.map((each) => each.power_watts)), "W"), true],
  ["temperature", (s, g) => unit(highest(g.map((each) => each.temperature_celsius)), "°C"), true],
  ["GPU", (s, g) => g.map((each) => `${each.gpu}${each.up === false ? " (lost)" : ""}`).join(", ") || UNKNOWN, false],
];

function most(stage, share) {
  return (isBound(stage) && share !== null && share !== undefined ? "≤ " : "") + percent(share);
}

function batch(stage) {
  const parts = MODES.filter((mode) => (stage.batch_size?.[mode] ?? null) !== null);
  if (!parts.length) return UNKNOWN;
  return parts.map((mode) => `${stage.batch_size[mode]}${mode === "prefill" ? " prefill" : ""}`).join(" + ");
}

export function showStages(pipeline, gpus) {
  const table = byId("stages");
  fillList(table.tHead.rows[0], COLUMNS, () => document.createElement("th"), (head, [name, , numeric]) => {
    head.scope = "col";
    head.className = numeric ? "n" : "";
    say(head, name);
  });
  const byNumber = new Map(gpus.map((gpu) => [gpu.gpu, gpu]));
  const rows = pipeline.stages.map((stage) => {
    const own = stage.gpus.map((gpu) => byNumber.get(gpu)).filter((gpu) => gpu !== undefined);
    return COLUMNS.map(([, text]) => text(stage, own));
  });
  fillRows(table.tBodies[0], rows, (index) => COLUMNS[index][2]);
}

export function showSlots(slots) {
  const body = byId("slots").tBodies[0];
  const sizes = slots.sizes ?? [];
  const count = slots.sizes === null ? 0 : Math.max(slots.slots ?? 0, sizes.length);
  byId("slots").hidden = count === 0;
  const most = Math.max(...sizes, 1);
  fillList(
    body,
    Array.from({ length: count }, (_, slot) => sizes[slot] ?? 0),
    () => {
      const line = document.createElement("tr");
      const head = document.createElement("th");
      head.scope = "row";
      const bar = document.createElement("td");
      bar.className = "bar";
      bar.append(document.createElement("div"));
      line.append(head, document.createElement("td"), bar);
      return line;
    },
    (line, size) => {
      say(line.children[0], line.sectionRowIndex);
      line.children[1].className = "n";
      say(line.children[1], size);
      const bar = line.children[2].firstElementChild;
      bar.className = size ? "" : "empty";
      bar.style.width = size ? `${(100 * size) / most}%` : "100%";
    },
  );
  let told = "";
  if (slots.effective !== null) {
    told = `As good as ${number(slots.effective, 1)} even micro-batches of ${slots.slots ?? UNKNOWN}; in the order of the ring.`;
  } else if (slots.slots !== null) {
    const seen = slots.observable === null ? "" : ` The log shows ${slots.observable} of ${slots.slots}.`;
    told = `Not observable${slots.reason ? `: ${slots.reason}` : ""}.${seen}`;
  } else {
    told = "How many there are is not known yet.";
  }
  say(byId("slots-told"), told);
}

export function showSources(state) {
  fillRows(
    byId("sources").tBodies[0],
    state.sources.map((source) => [
      source.source,
      (source.up ? "read" : "not read") +
        (source.note ? `: ${source.note}` : "") +
        (source.gaps ? `; gaps: ${source.gaps}` : "") +
        (source.suppressed_messages ? `; suppressed: ${source.suppressed_messages}` : ""),
      source.lines ? number(source.lines) : "",
      source.lag_seconds === null ? "" : `${number(source.lag_seconds, 1)} s`,
    ]),
    (index) => index >= 2,
  );
  fillPairs(byId("switch-on"), state.switch_on.map((each) => [each.setting, each.shows]));
  byId("switch-on").hidden = state.switch_on.length === 0;
  byId("nothing-more").hidden = state.switch_on.length > 0;
  say(byId("version"), state.version);
}

export function showWaits(state, seen) {
  byId("waits").hidden = state.waits_for.length === 0;
  say(byId("waits-title"), seen ? "Not all is read" : "No picture yet");
  say(byId("waited"), seen ? "" : duration(state.up_seconds));
  fillList(byId("waits-list"), state.waits_for, () => document.createElement("li"), say);
}

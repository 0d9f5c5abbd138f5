// Puts it together: states come in, the chosen pipeline is shown, a cursor looks into the past.

import { CELLS, Timeline } from "./cells.js";
import { Connection } from "./connection.js";
import { byId, fillList, say, showFigures, showSlots, showSources, showStages, showVerdict, showWaits } from "./panels.js";
import { drawSample, Picture } from "./picture.js";
import { clock, percent, sharesText, unit, UNKNOWN } from "./words.js";

const OVERVIEW_SECONDS = 60;
const CLOSEUP_SECONDS = 3;
const PAST_SECONDS = 540;
const ALOUD_SECONDS = 20;
const ASK_AGAIN_MS = 20_000;
const STATES = ["working", "waiting", "resident", "idle", "unknown"];

const timelines = new Map();
/** When a minute of a pipeline was asked for. */
const asked = new Map();
const overview = new Picture(byId("overview"), 10, true);
const closeup = new Picture(byId("closeup"), 1);
let state = null;
let chosen = null;
/** End of what is shown, epoch seconds; null follows what comes. */
let end = null;
/** Where a key or a click has put the cursor, and where a pointer hovers. */
let pinned = null;
let hovered = null;
let aloudAt = -Infinity;

const keyOf = (server, dp) => JSON.stringify([server, dp]);
const timeline = () => timelines.get(chosen);
const newestEnd = () => (timeline()?.newest ?? null) === null ? null : timeline().newest + 1;
const shownEnd = () => end ?? newestEnd();

// --- what comes in -------------------------------------------------------------------------------

function pipelines() {
  return state.servers.flatMap((server) =>
    server.pipelines.map((pipeline) => ({ key: keyOf(server.server, pipeline.dp_rank), server, pipeline })),
  );
}

function remember(answer) {
  for (const each of answer.pipelines) {
    const key = keyOf(each.server, each.dp_rank);
    if (!timelines.has(key)) timelines.set(key, new Timeline());
    timelines.get(key).take(each.seconds, answer.cells);
  }
}

function take(fresh) {
  state = fresh;
  remember(fresh.timeline);
  const known = pipelines();
  choose(known);
  showSources(state);
  showWaits(state, known.some(({ key }) => timelines.get(key)?.newest !== null));
  const one = known.find(({ key }) => key === chosen);
  for (const part of ["verdict", "figures", "picture", "now", "slots-now"]) byId(part).hidden = one === undefined;
  if (one === undefined) return;
  const said = state.said.find((each) => keyOf(each.server, each.dp_rank) === chosen);
  const sentence = showVerdict(said);
  showFigures(one.pipeline, said);
  showStages(one.pipeline, state.gpus);
  showSlots(one.pipeline.slots);
  speak(sentence);
  schedule();
}

/** A screen reader hears the sentence now and then, not every second. */
function speak(sentence) {
  const now = performance.now() / 1000;
  if (now - aloudAt < ALOUD_SECONDS || end !== null) return;
  aloudAt = now;
  say(byId("aloud"), sentence);
}

// --- which pipeline ------------------------------------------------------------------------------

function fromHash() {
  const asks = new URLSearchParams(location.hash.slice(1));
  return asks.has("server") ? keyOf(asks.get("server"), Number(asks.get("dp") ?? 0)) : null;
}

function choose(known) {
  const keys = known.map(({ key }) => key);
  const wanted = fromHash();
  chosen = keys.includes(wanted) ? wanted : keys.includes(chosen) ? chosen : (keys[0] ?? null);
  const replicas = new Set(known.map(({ pipeline }) => pipeline.dp_rank)).size > 1;
  fillList(byId("pipeline"), known, () => document.createElement("option"), (option, { key, server, pipeline }) => {
    option.value = key;
    say(option, replicas ? `${server.server}, replica ${pipeline.dp_rank}` : server.server);
  });
  if (byId("pipeline").value !== chosen) byId("pipeline").value = chosen;
  byId("switch").hidden = known.length < 2;
  document.title = known.length && chosen ? `${JSON.parse(chosen)[0]} · SGLang pipeline` : "SGLang pipeline";
}

byId("pipeline").addEventListener("change", (event) => {
  const [server, dp] = JSON.parse(event.target.value);
  location.hash = new URLSearchParams({ server, dp }).toString();
});

addEventListener("hashchange", () => {
  pinned = hovered = null;
  if (state !== null) take(state);
});

// --- the picture ---------------------------------------------------------------------------------

let scheduled = false;

function schedule() {
  if (scheduled || document.hidden) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    draw();
  });
}

function rowsOf(pipeline, first, last) {
  const stages = new Map(pipeline.stages.map((stage) => [stage.pp_rank, stage]));
  const ranks = new Set([...stages.keys(), ...timeline().ranks]);
  return [...ranks].sort((a, b) => a - b).map((rank) => {
    const gpus = stages.get(rank)?.gpus ?? [];
    const mean = timeline().shares(rank, Math.round(first * CELLS), Math.round(last * CELLS));
    return { rank, name: `stage ${rank}${gpus.length ? ` · GPU ${gpus.join(", ")}` : ""}`, share: workText(mean) };
  });
}

/** Working share of what was seen, or its bound. */
function workText(mean) {
  const seen = 1 - mean.unknown;
  if (seen < 0.005) return UNKNOWN;
  if (mean.resident >= 0.005) return `≤ ${percent((mean.working + mean.resident) / seen)}`;
  return percent(mean.working / seen);
}

const cursor = () => hovered ?? pinned;

function closeupEnd(last) {
  if (pinned === null) return last;
  return Math.min(Math.max(Math.floor(pinned.at) + 2, last - OVERVIEW_SECONDS + CLOSEUP_SECONDS), last);
}

function draw() {
  const one = state === null ? undefined : pipelines().find(({ key }) => key === chosen);
  const last = timeline() === undefined ? null : shownEnd();
  for (const id of ["overview", "closeup", "overview-title", "closeup-title", "legend", "readout"]) byId(id).hidden = last === null;
  say(byId("told"), last === null && one ? "No GPU was seen yet: when a stage works, waits or idles is not known." : "");
  if (one === undefined || last === null) return;
  fetchPast(last);
  const near = closeupEnd(last);
  const rows = rowsOf(one.pipeline, last - OVERVIEW_SECONDS, last);
  overview.draw(timeline(), rows, OVERVIEW_SECONDS, last, cursor(), [near - CLOSEUP_SECONDS, near]);
  closeup.draw(timeline(), rowsOf(one.pipeline, near - CLOSEUP_SECONDS, near), CLOSEUP_SECONDS, near, cursor());
  const paused = end === null ? "" : " (paused)";
  say(byId("overview-title"), `${OVERVIEW_SECONDS} s up to ${clock(last)}${paused}; a cell is 200 ms, as high as its share; at the right the share of work`);
  say(byId("closeup-title"), `Close-up: ${CLOSEUP_SECONDS} s up to ${clock(near)}; a cell is 20 ms`);
  const bounds = rows.some((row) => row.share.startsWith("≤"));
  say(byId("told"), bounds ? "Where a stage is drawn as resident, nothing tells its work from its waiting: it worked at most that much." : "");
  read();
}

/** What is under the cursor, in words. */
function read() {
  const at = cursor();
  if (at === null) {
    say(byId("readout"), "Point at the picture, or use the arrow keys in it, to see a moment.");
    return;
  }
  const ticks = hovered?.ticks ?? pinned?.ticks ?? 10;
  const first = Math.floor((at.at * CELLS) / ticks + 1e-6) * ticks;
  const shares = timeline().shares(at.rank, first, first + ticks);
  const beside = timeline().beside(at.rank, Math.floor(first / CELLS));
  const batch = beside.batch === null ? "batch ?" : `batch of ${beside.batch}`;
  say(
    byId("readout"),
    `Stage ${at.rank}, ${clock(first / CELLS, true)}, ${ticks * 20} ms: ${sharesText(shares)}; ${unit(beside.watts, "W")}, ${batch}`,
  );
}

/** What is looked at and not here (it settled before this page came) is asked for, a minute at a time. */
async function fetchPast(last) {
  if (end === null) return;
  const pipeline = timeline();
  for (let until = Math.ceil(last / 60) * 60; until > last - OVERVIEW_SECONDS; until -= 60) {
    const name = `${chosen} ${until}`;
    const first = Math.max(until - 60, Math.floor(last - OVERVIEW_SECONDS));
    if (!pipeline.lacks(first, until) || performance.now() - (asked.get(name) ?? -Infinity) < ASK_AGAIN_MS) continue;
    asked.set(name, performance.now());
    try {
      const answer = await fetch(`api/v1/timeline?seconds=60&until=${until}&cells=20`);
      if (answer.ok) remember(await answer.json());
    } catch {
      // The connection says for itself that it is lost; what is missing is asked for again.
    }
    schedule();
  }
}

// --- looking back --------------------------------------------------------------------------------

function show(at) {
  const newest = newestEnd();
  if (newest === null) return;
  end = at === null || at >= newest ? (at === null ? null : newest) : Math.max(at, newest - PAST_SECONDS);
  const button = byId("pause");
  button.className = end === null ? "" : "on";
  say(button, end === null ? "Pause" : "Follow");
  byId("forth").disabled = end === null;
  byId("past").value = end === null ? 0 : newest - end;
  byId("past").setAttribute("aria-valuetext", end === null ? "now" : `${Math.round(newest - end)} seconds back`);
  if (end === null) pinned = null;
  schedule();
}

const step = (seconds) => {
  const at = shownEnd() + seconds;
  show(at >= newestEnd() ? null : at);
};

byId("pause").addEventListener("click", () => show(end === null ? newestEnd() : null));
byId("back").addEventListener("click", () => step(-OVERVIEW_SECONDS / 2));
byId("forth").addEventListener("click", () => step(OVERVIEW_SECONDS / 2));
byId("past").addEventListener("input", (event) => {
  const back = Number(event.target.value);
  show(back === 0 ? null : newestEnd() - back);
});

function pin(to) {
  if (end === null) show(newestEnd());
  const last = shownEnd();
  const at = Math.min(to.at, last - 0.02);
  pinned = { ...to, at };
  if (at < last - OVERVIEW_SECONDS) show(at + OVERVIEW_SECONDS);
  schedule();
}

for (const picture of [overview, closeup]) {
  picture.canvas.addEventListener("pointermove", (event) => {
    const found = picture.under(event);
    hovered = found && { ...found, ticks: picture.ticks };
    schedule();
  });
  picture.canvas.addEventListener("pointerleave", () => {
    hovered = null;
    schedule();
  });
  picture.canvas.addEventListener("click", (event) => {
    const found = picture.under(event);
    if (found) pin({ ...found, ticks: picture.ticks });
  });
}

const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

byId("overview").addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || newestEnd() === null) return;
  const move = MOVES[event.key];
  if (move) {
    const ranks = overview.rows.map((row) => row.rank);
    const ticks = event.shiftKey ? 1 : 10;
    const from = pinned ?? { rank: ranks[move[1] ? ranks.length - 1 : 0], at: shownEnd() - 0.1, ticks };
    const row = Math.min(Math.max(ranks.indexOf(from.rank) + move[1], 0), ranks.length - 1);
    pin({ rank: pinned ? ranks[row] : from.rank, at: pinned ? from.at + (move[0] * ticks) / CELLS : from.at, ticks });
  } else if (event.key === " ") show(end === null ? newestEnd() : null);
  else if (event.key === "PageUp") step(-OVERVIEW_SECONDS / 2);
  else if (event.key === "PageDown") step(OVERVIEW_SECONDS / 2);
  else if (event.key === "End") show(null);
  else if (event.key === "Home") show(newestEnd() - PAST_SECONDS);
  else if (event.key === "Escape") {
    pinned = null;
    schedule();
  } else return;
  event.preventDefault();
});

// --- the rest ------------------------------------------------------------------------------------

function legend() {
  const style = getComputedStyle(document.documentElement);
  fillList(
    byId("legend"),
    STATES,
    () => {
      const item = document.createElement("li");
      item.append(document.createElement("canvas"), document.createElement("span"));
      return item;
    },
    (item, name) => {
      drawSample(item.children[0], name);
      say(item.children[1], style.getPropertyValue(`--${name}-means`).trim().slice(1, -1));
    },
  );
}

const redraw = () => {
  legend();
  schedule();
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("resize", redraw);
document.addEventListener("visibilitychange", schedule);
addEventListener("load", redraw);

new Connection(take, (text, well) => {
  say(byId("connection"), text);
  byId("connection").className = `connection ${well ? "well" : "lost"}`;
});

// Numbers, shares and instants as text. What is not known is a question mark.

export const UNKNOWN = "?";
const known = (value) => value !== null && value !== undefined;

export const percent = (share) => (known(share) ? `${Math.round(100 * share)}\u00a0%` : UNKNOWN);

export function number(value, digits = 0) {
  return known(value)
    ? value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })
    : UNKNOWN;
}

export const unit = (value, name, digits = 0) =>
  known(value) ? `${number(value, digits)}\u00a0${name}` : UNKNOWN;

/** A name of ours (`gpu_fault`) as words. */
export const words = (name) => name.replaceAll("_", " ").replace(/\bgpu\b/, "GPU").replace(/\bkv\b/, "KV");

export function clock(at, milliseconds = false) {
  const date = new Date(at * 1000);
  const two = (value) => String(value).padStart(2, "0");
  const text = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return milliseconds ? `${text}.${String(date.getMilliseconds()).padStart(3, "0")}` : text;
}

export function duration(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h`;
}

const STATES = [
  ["working", "works"],
  ["resident", "works or waits"],
  ["waiting", "waits"],
  ["idle", "idle"],
  ["unknown", "not seen"],
];

/** "works 62 %, idle 38 %": parts below half a percent are left out. */
export function sharesText(shares) {
  const parts = STATES.filter(([state]) => shares[state] >= 0.005).map(
    ([state, verb]) => `${verb}${state === "resident" ? " at most" : ""} ${percent(shares[state])}`,
  );
  return parts.join(", ");
}

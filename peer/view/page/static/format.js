// Numbers as text.

const UNKNOWN = "–";

/** Return a number with three digits after the point; a dash if it is not known. */
export function decimal(value, digits = 3) {
  return known(value) ? value.toFixed(digits) : UNKNOWN;
}

/** Return a whole number, or a dash. */
export function whole(value) {
  return known(value) ? Math.round(value).toLocaleString("en-US") : UNKNOWN;
}

/** Return bytes in a decimal unit: `22.1 MB`. */
export function bytesText(value) {
  if (!known(value)) return UNKNOWN;
  for (const [unit, size] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (value >= size) return `${(value / size).toFixed(1)} ${unit}`;
  }
  return `${value} B`;
}

/** Return seconds in the largest units that matter: `0.36 s`, `12 s`, `3 min 20 s`, `2 h 5 min`. */
export function durationText(seconds) {
  if (!known(seconds)) return UNKNOWN;
  if (seconds === 0) return "0 s";
  if (seconds < 10) return `${seconds.toFixed(seconds < 1 ? 2 : 1)} s`;
  const all = Math.round(seconds);
  if (all < 60) return `${all} s`;
  if (all < 3600) return twoUnits(all, 60, "min", "s");
  return twoUnits(Math.floor(all / 60), 60, "h", "min");
}

function twoUnits(value, size, unit, smaller) {
  const rest = value % size;
  return `${Math.floor(value / size)} ${unit}${rest ? ` ${rest} ${smaller}` : ""}`;
}

/** Return `1 peer`, `2 peers`. */
export function counted(count, noun) {
  return `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** Return whether a value is a finite number. */
export function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}

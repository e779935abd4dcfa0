// Numbers as people read them. What is not known is a dash, never a zero.

export const DASH = "–";
const GIB = 2 ** 30;

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** Three significant digits, without an exponent. */
export function number(value) {
  if (!isNumber(value)) return DASH;
  const size = Math.abs(value);
  if (size !== 0 && size < 0.01) return value.toPrecision(2);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : 2;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

export function seconds(value) {
  if (!isNumber(value)) return DASH;
  if (value > 0 && value < 0.001) return "under 1 ms";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  const whole = Math.round(value);
  const minutes = Math.floor(whole / 60);
  return minutes < 60 ? `${minutes} min ${whole % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** Seconds that are only about right, without a fraction. */
export const roughly = (value) => (isNumber(value) && value < 120 ? `${Math.max(Math.ceil(value), 1)} s` : seconds(value));

export const millis = (value) => (isNumber(value) ? seconds(value / 1000) : DASH);
export const rate = (value) => (isNumber(value) ? `${number(value)} tok/s` : DASH);

export function percent(ratio) {
  if (!isNumber(ratio)) return DASH;
  return ratio > 0 && ratio < 0.001 ? "under 0.1 %" : `${number(ratio * 100)} %`;
}

export function bytes(value) {
  if (!isNumber(value)) return DASH;
  if (value >= GIB / 10) return `${number(value / GIB)} GiB`;
  return value >= 2 ** 20 ? `${number(value / 2 ** 20)} MiB` : `${number(value / 1024)} KiB`;
}

/** Bytes a second in powers of ten, as makers and the rest of slowtok say it. */
export function bandwidth(value) {
  if (!isNumber(value)) return DASH;
  if (value >= 1e8) return `${number(value / 1e9)} GB/s`;
  return value >= 1e6 ? `${number(value / 1e6)} MB/s` : `${number(value / 1e3)} kB/s`;
}

export function count(value) {
  return isNumber(value) ? value.toLocaleString("en") : DASH;
}

/** The band of a record, as text. */
export function band(expected) {
  const low = expected?.decode_low_tps, high = expected?.decode_high_tps;
  if (!isNumber(low) || !isNumber(high)) return null;
  return `${number(low)} to ${rate(high)}`;
}

/** A record's time of day; with the date when it was another day. */
export function clock(iso, now = new Date()) {
  const at = new Date(iso);
  const time = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  if (at.toDateString() === now.toDateString()) return time;
  const two = (value) => String(value).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${time}`;
}

/** A value of evidence with its unit: bytes and ratios as people read them. */
export function measured(value, unit) {
  if (unit === "bytes") return bytes(value);
  if (unit === "bytes/s") return bandwidth(value);
  if (unit === "ratio") return percent(value);
  if (unit === "s") return seconds(value);
  if (unit === "ms") return millis(value);
  return `${number(value)} ${unit ?? ""}`.trim();
}

/** A field's name as words: `server_run_delay_cores` is "server run delay cores". */
export const words = (name) => name.replaceAll("_", " ");

export function median(values) {
  const ordered = values.filter(isNumber).sort((a, b) => a - b);
  if (!ordered.length) return null;
  const half = ordered.length >> 1;
  return ordered.length % 2 ? ordered[half] : (ordered[half - 1] + ordered[half]) / 2;
}

/** The cause to cure first; what merely informs is none. */
export function firstCause(record) {
  return (record.findings ?? []).find((finding) => !finding.informational)?.cause ?? null;
}

/** What a slow request lost, in ms: to each cause, and to none that is known; null of any other. */
export function lostMs(record) {
  if (record.verdict !== "slow") return null;
  const named = (record.findings ?? []).filter((finding) => !finding.informational).reduce((sum, finding) => sum + (finding.lost_ms ?? 0), 0);
  return named + (record.budget_ms_per_token?.unexplained ?? 0) * (record.tokens?.completion ?? 0);
}

// What a request that runs looks like: slow is not stuck. Pure.

import { median } from "./format.js";

// Silence that is more than a slow model's: longer than this, and than ten of its own gaps.
// No published source.
export const STUCK_S = 5;
export const STUCK_GAPS = 10;

/** The band to hold a running request against: that of the newest record of the same model. */
export function bandFor(entry, records) {
  for (const record of records) {
    const expected = record.expected;
    if (record.model === entry.model && record.upstream?.name === entry.engine && expected?.decode_low_tps) return expected;
  }
  return null;
}

/** How long this model usually takes to its first token: the median of its records, and how many. */
export function usualFirstToken(entry, records) {
  const found = [...records]
    .filter((record) => record.model === entry.model && record.timing?.ttft_ms !== undefined)
    .slice(0, 20)
    .map((record) => record.timing.ttft_ms / 1000);
  return { s: median(found), of: found.length };
}

/** One word on a running request, with the reason: waiting, whole, stuck, slow, normal, decoding. */
export function stateOf(entry, expected, nowMs) {
  const passed_s = Math.max((nowMs - entry.told_at_ms) / 1000, 0);
  const silent_s = entry.silent_s === undefined ? null : entry.silent_s + passed_s;
  const since_s = entry.since_s + passed_s;
  const seen = { since_s, silent_s, tps: entry.recent_tps ?? null };
  if (entry.phase !== "decode") return { state: entry.phase, ...seen };
  const gap_s = entry.decode_tps ? 1 / entry.decode_tps : 0;
  if (silent_s > Math.max(STUCK_S, STUCK_GAPS * gap_s)) return { state: "stuck", ...seen };
  if (!expected || seen.tps === null || (entry.tokens ?? 0) < 8) return { state: "decode", ...seen };
  return { state: seen.tps < expected.decode_low_tps ? "slow" : "normal", ...seen };
}

// What a request that runs looks like: slow is not stuck. Pure.

import { median } from "./format.js";

// Silence that is more than a slow model's: longer than this, and than ten of its own gaps.
// Heuristic.
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

/** Whether its answer is being made, as far as that is told. */
export const isDecoding = (entry) => entry.phase === "decode" || (entry.phase === "whole" && entry.tokens !== undefined);

/** One word on a running request, and what the word rests on; `passed_s` is since it was told. */
export function stateOf(entry, expected, nowMs) {
  const passed_s = Math.max((nowMs - entry.told_at_ms) / 1000, 0);
  const silent_s = entry.silent_s === undefined ? null : entry.silent_s + passed_s;
  const tps = entry.recent_tps ?? (entry.phase === "whole" ? entry.decode_tps : null) ?? null;
  const seen = { passed_s, since_s: entry.since_s + passed_s, sent_s: (entry.sent_s ?? 0) + passed_s, silent_s, tps };
  if (entry.prefill) return { state: isStuckReading(entry.prefill, passed_s) ? "stuck" : entry.phase, ...seen };
  if (!isDecoding(entry)) return { state: entry.phase, ...seen };
  const gap_s = entry.decode_tps ? 1 / entry.decode_tps : 0;
  if (silent_s > Math.max(STUCK_S, STUCK_GAPS * gap_s)) return { state: "stuck", ...seen };
  if (!expected || tps === null || (entry.tokens ?? 0) < 8) return { state: entry.phase, ...seen };
  return { state: tps < expected.decode_low_tps ? "slow" : "normal", ...seen };
}

/** A slow prefill goes on in steps; before its second step nothing can be said. */
function isStuckReading(prefill, passed_s) {
  if (!prefill.step_s || prefill.silent_s === undefined) return false;
  return prefill.silent_s + passed_s > Math.max(STUCK_S, STUCK_GAPS * prefill.step_s);
}

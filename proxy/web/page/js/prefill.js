// A request that waits for its first token: in a queue, in its prefill, or nobody tells where.

import { el, sized } from "./dom.js";
import { count, number, rate, roughly, seconds } from "./format.js";
import { usualFirstToken } from "./judge.js";

/** How far it is: by its slot's word, else by estimate, else beside what is usual for the model. */
export function renderWaiting(entry, seen, records) {
  if (entry.phase === "queue") return queued(entry, seen);
  if (entry.prefill?.tokens !== undefined) return reading(entry.prefill, seen);
  if (entry.prefill?.eta_s !== undefined) return estimated(entry.prefill, seen);
  return usual(entry, seen, records);
}

function queued(entry, seen) {
  const slots = entry.queue_slots === 1 ? "The engine's only slot works" : `All ${entry.queue_slots} slots of the engine work`;
  const after = own_s(entry.prefill);
  return el(
    "div",
    {},
    el("p", { class: "reading" }, `in the queue for ${seconds(seen.since_s)}`),
    el("p", { class: "muted" }, `${slots} for other requests.`, after === null ? "" : ` Its own prompt then takes about ${roughly(after)} (estimate).`),
  );
}

const own_s = (prefill) => (prefill?.about_tokens && prefill.tps ? prefill.about_tokens / prefill.tps : null);

/** By the slot's word: what was read, and between two steps what should have been. */
function reading(prefill, seen) {
  const { tokens, about_tokens: about, tps } = prefill;
  const stuck = seen.state === "stuck";
  const parts = [];
  if (about) {
    const due = Math.min(tokens + (tps ?? 0) * (prefill.silent_s + seen.passed_s), 0.98 * about);
    parts.push(bar(tokens / about, stuck ? 0 : due / about));
  }
  parts.push(el("p", { class: "reading" }, about ? `${count(tokens)} of about ${count(about)} prompt tokens read` : `${count(tokens)} prompt tokens read`));
  if (stuck) parts.push(el("p", { class: "muted" }, `nothing more for ${seconds(prefill.silent_s + seen.passed_s)}; a step took ${seconds(prefill.step_s)} before`));
  else parts.push(el("p", { class: "muted" }, [pace(prefill), toGo(prefill, seen)].filter(Boolean).join(": ")));
  return el("div", {}, parts);
}

function pace({ tps, source }) {
  if (!tps) return "too early for a rate";
  return source === "slots" ? `at ${rate(tps)}` : `at ${rate(tps)}, as this model's last long prefill (estimate)`;
}

function toGo(prefill, seen) {
  if (prefill.eta_s === undefined) return prefill.about_tokens ? null : "how long its prompt is, is not known yet";
  const left_s = prefill.eta_s - seen.passed_s;
  return left_s > 0 ? `about ${roughly(left_s)} to go` : "longer than that by now";
}

function estimated(prefill, seen) {
  const left_s = prefill.eta_s - seen.passed_s;
  const whole_s = seen.sent_s + Math.max(left_s, 0);
  const eta = left_s > 0 ? `about ${roughly(left_s)} to go` : "longer than estimated";
  return el(
    "div",
    {},
    bar(0, whole_s > 0 ? Math.min(seen.sent_s / whole_s, 0.98) : 0),
    el("p", { class: "reading" }, `waiting for ${seconds(seen.since_s)}, ${eta}`),
    el("p", { class: "muted" }, `Estimate: about ${count(prefill.about_tokens)} prompt tokens, at ${rate(prefill.tps)} as in this model's last long prefill. The engine tells nothing before the first token.`),
  );
}

/** What is usual, where not even the prompt's length can be estimated. */
function usual(entry, seen, records) {
  const found = usualFirstToken(entry, records);
  const parts = [el("p", { class: "reading" }, `waiting for ${seconds(seen.since_s)}`)];
  if (found.s && entry.phase === "waiting") {
    const left_s = found.s - seen.since_s;
    const eta = left_s > 0 ? `about ${roughly(left_s)} to go` : `${number(seen.since_s / found.s)} times as long as usual`;
    parts.unshift(bar(0, Math.min(seen.since_s / found.s, 1)));
    parts.push(el("p", { class: "muted" }, `the first token usually takes ${seconds(found.s)} (median of ${found.of}): ${eta}`));
  }
  return el("div", {}, parts);
}

/** Told is solid, guessed is hatched; both are shares of the whole. */
function bar(told, guessed) {
  return el(
    "div",
    { class: "gauge wait", "aria-hidden": "true" },
    sized(el("span", { class: "gauge-guess" }), { width: 100 * Math.max(guessed, told) }),
    sized(el("span", { class: "gauge-rate" }), { width: 100 * told }),
  );
}

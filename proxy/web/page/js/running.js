// Running now: one card for each request on its way.

import { el, sized } from "./dom.js";
import { band, clock, count, rate, roughly, seconds } from "./format.js";
import { bandFor, isDecoding, stateOf } from "./judge.js";
import { renderWaiting } from "./prefill.js";

const SILENT_S = 2; // then the rate of the last seconds is no longer the news
const WORDS = {
  receiving: "being sent to the engine",
  waiting: "waiting for the first token",
  queue: "waiting for a slot",
  prefill: "reading the prompt",
  whole: "working; a reply that is not streamed arrives as a whole",
  decode: "decoding",
  normal: "decoding, as expected",
  slow: "decoding, slower than expected",
  delivery: "the client is still taking the reply",
};

export function renderRunning(place, source) {
  const entries = [...source.running.values()];
  const records = [...source.records.values()];
  const isBlind = source.link === "offline"; // what is not heard of would look stuck
  const shown = entries.length && !isBlind
    ? el("ul", { class: "cards" }, entries.map((entry) => card(entry, records)))
    : el("p", { class: "empty" }, idleText(source));
  place.replaceChildren(...(isBlind ? [] : gone(source)), shown);
}

/** Engines that were there and do not answer any more. */
function gone(source) {
  const lost = (source.status?.engines ?? []).filter((engine) => !engine.answers && engine.gone_since);
  return lost.map((engine) => el("p", { class: "notice" }, el("span", { class: "pill stuck" }, "gone"), ` ${whereOf(engine)} has not answered since ${clock(engine.gone_since)}.`));
}

/** Its name and address; one that was given no name is called by its address. */
const whereOf = ({ name, kind, url }) => (name && url.includes(name) ? url : `${name ?? kind} at ${url}`);

function idleText(source) {
  if (source.link === "offline") return "The proxy does not answer: what runs is not known.";
  if (!source.status) return "Asking the proxy.";
  const up = source.status.engines.filter((engine) => engine.answers);
  if (source.status.engines.some((engine) => engine.gone_since) && !up.length) return "No engine answers any more; slowtok keeps looking.";
  if (!up.length) return "No engine answers yet. Start llama-server, Ollama or vLLM: slowtok keeps looking.";
  const base = `${location.origin}/v1`;
  return `Nothing is running. Point a client at ${base} to see its requests here.`;
}

function card(entry, records) {
  const expected = bandFor(entry, records);
  const seen = stateOf(entry, expected, performance.now());
  return el(
    "li",
    { class: "card running", dataset: { state: seen.state, id: entry.id } },
    el("p", { class: "card-title" }, el("strong", {}, entry.model ?? "no model named"), el("span", { class: "muted" }, entry.engine ?? "")),
    el("p", { class: "state" }, el("span", { class: `pill ${seen.state}` }, seen.state), " ", stateText(entry, seen)),
    isDecoding(entry) ? gauge(entry, seen, expected) : entry.phase === "delivery" ? el("p", { class: "reading" }, `${rate(entry.decode_tps)} on the mean`) : renderWaiting(entry, seen, records),
    el(
      "p",
      { class: "muted" },
      `${seconds(seen.since_s)} in all`,
      entry.tokens === undefined ? "" : `, ${tokensSoFar(entry)}`,
      entry.ttft_s === undefined ? "" : `, first one after ${seconds(entry.ttft_s)}`,
    ),
  );
}

function stateText(entry, seen) {
  if (seen.state === "stuck") return entry.prefill ? "its prompt is not read on" : "no token comes";
  if (entry.phase === "whole" && seen.state !== "whole") return `${WORDS[seen.state]}; the reply comes as a whole`;
  return WORDS[seen.state] ?? seen.state;
}

/** Of a stream its events are counted, of a whole reply its slot tells. */
function tokensSoFar(entry) {
  const made = entry.phase === "whole" ? `${count(entry.tokens)} tokens` : `${count(entry.tokens)} tokens or more`;
  return entry.remaining_tokens === undefined ? made : `${made}, at most ${count(entry.remaining_tokens)} to come`;
}

/** The longest that it may still take, where its tokens have a limit: it may end before. */
function toGo(entry, tps) {
  return entry.remaining_tokens && tps ? `, at most ${roughly(entry.remaining_tokens / tps)} to go at this rate` : "";
}

/** The live rate on a scale with the band; nothing moves on it while nothing comes. */
function gauge(entry, seen, expected) {
  const stuck = seen.state === "stuck";
  const tps = seen.tps ?? entry.decode_tps ?? null;
  const most = 1.15 * Math.max(expected?.decode_high_tps ?? 0, tps ?? 0, 1e-6);
  const scale = expected || stuck ? el("div", { class: "gauge", "aria-hidden": "true" }) : null;
  if (expected) {
    const left = (100 * expected.decode_low_tps) / most;
    scale.append(sized(el("span", { class: "gauge-band" }), { left, width: (100 * expected.decode_high_tps) / most - left }));
  }
  if (expected && tps !== null && !stuck) scale.append(sized(el("span", { class: "gauge-rate" }), { width: (100 * tps) / most }));
  const said = stuck
    ? `no token for ${seconds(seen.silent_s)}; before that ${rate(entry.decode_tps)}`
    : `${seen.silent_s > SILENT_S ? `no token for ${seconds(seen.silent_s)}` : `${rate(tps)} ${entry.recent_tps === undefined ? "so far" : "now"}`}${entry.recent_tps === undefined ? "" : `, ${rate(entry.decode_tps)} on the mean`}${toGo(entry, tps)}`;
  const against = expected ? `expected ${band(expected)}, as of this model's last request` : "no band for this model yet";
  return el("div", {}, scale, el("p", { class: "reading" }, said), el("p", { class: "muted" }, against));
}

// Running now: one card for each request on its way.

import { el, sized } from "./dom.js";
import { band, count, number, rate, seconds } from "./format.js";
import { bandFor, stateOf, usualFirstToken } from "./judge.js";

const SILENT_S = 2; // then the rate of the last seconds is no longer the news
const WORDS = {
  receiving: "being sent to the engine",
  waiting: "waiting for the first token",
  whole: "working; a reply that is not streamed shows nothing before its end",
  decode: "decoding",
  normal: "decoding, as expected",
  slow: "decoding, slower than expected",
  stuck: "stuck: no token comes",
  delivery: "the client is still taking the reply",
};

export function renderRunning(place, source) {
  const entries = [...source.running.values()];
  const records = [...source.records.values()];
  if (!entries.length) {
    place.replaceChildren(el("p", { class: "empty" }, idleText(source)));
    return;
  }
  place.replaceChildren(el("ul", { class: "cards" }, entries.map((entry) => card(entry, records))));
}

function idleText(source) {
  if (!source.status) return source.link === "offline" ? "The proxy does not answer." : "Asking the proxy.";
  const up = source.status.engines.filter((engine) => engine.answers);
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
    el("p", { class: "state" }, el("span", { class: `pill ${seen.state}` }, seen.state), " ", WORDS[seen.state] ?? seen.state),
    entry.phase === "decode" ? gauge(entry, seen, expected) : waiting(entry, seen, records),
    el(
      "p",
      { class: "muted" },
      `${seconds(seen.since_s)} in all`,
      entry.tokens === undefined ? "" : `, ${count(entry.tokens)} tokens or more`,
      entry.ttft_s === undefined ? "" : `, first one after ${seconds(entry.ttft_s)}`,
    ),
  );
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
    : `${seen.silent_s > SILENT_S ? `no token for ${seconds(seen.silent_s)}` : `${rate(tps)} now`}, ${rate(entry.decode_tps)} on the mean`;
  const against = expected ? `expected ${band(expected)}, as of this model's last request` : "no band for this model yet";
  return el("div", {}, scale, el("p", { class: "reading" }, said), el("p", { class: "muted" }, against));
}

/** How long it waits, beside what is usual for the model: no engine tells how far a prefill is. */
function waiting(entry, seen, records) {
  if (entry.phase === "delivery") return el("p", { class: "reading" }, `${rate(entry.decode_tps)} on the mean`);
  const usual = usualFirstToken(entry, records);
  const parts = [el("p", { class: "reading" }, `waiting for ${seconds(seen.since_s)}`)];
  if (usual.s && entry.phase === "waiting") {
    const bar = el("div", { class: "gauge wait", "aria-hidden": "true" });
    const most = Math.max(usual.s, seen.since_s) * 1.15;
    bar.append(
      sized(el("span", { class: "gauge-rate" }), { width: (100 * seen.since_s) / most }),
      sized(el("span", { class: "gauge-mark" }), { left: (100 * usual.s) / most }),
    );
    const left_s = usual.s - seen.since_s;
    const eta = left_s > 0 ? `about ${seconds(left_s)} to go` : `${number(seen.since_s / usual.s)} times as long as usual`;
    parts.unshift(bar);
    parts.push(el("p", { class: "muted" }, `the first token usually takes ${seconds(usual.s)} (median of ${usual.of}): ${eta}`));
  }
  return el("div", {}, parts);
}

// Whether a model fits where it was loaded: what it needs against what is there.

import { el, facts, sized } from "./dom.js";
import { bytes, count } from "./format.js";

const WORDS = { ok: "fits", note: "as it was asked for", warn: "costs speed", unknown: "not known" };
const LOOKS = { ok: "normal", note: "", warn: "slow", unknown: "" };
const ROUND_TOKENS = 256;

/** One part for each model in memory. */
export function renderFit(engine) {
  return (engine.fit ?? []).map((fit) => {
    const room = fit.usable_bytes ?? fit.total_bytes;
    const where = fit.usable_bytes ? "VRAM" : "RAM";
    return el(
      "section",
      { class: "fit" },
      el("h3", {}, "Fit: ", fit.model, " ", el("span", { class: `pill ${LOOKS[fit.state] ?? ""}` }, WORDS[fit.state] ?? fit.state)),
      room && fit.weights_bytes ? needBar(fit, room, where) : null,
      fit.said ? el("p", {}, `${fit.said.replace(`${fit.model}: `, "")}.`) : null,
      fit.advice ? el("p", { class: "advice" }, `${fit.state === "unknown" ? "To see it" : "What to do"}: ${fit.advice}`) : null,
      facts([
        ["Context that fits for sure", fit.most_context_tokens === undefined ? null : mostContext(fit)],
      ]),
    );
  });
}

function mostContext(fit) {
  const tokens = Math.floor(fit.most_context_tokens / ROUND_TOKENS) * ROUND_TOKENS;
  if (!tokens) return "none, with all of it on the GPU";
  return `${count(tokens)} tokens${fit.context_tokens ? `, reserved are ${count(fit.context_tokens)}` : ""}`;
}

/** Weights and KV cache on a scale of what is there; what sticks out is beyond the mark. */
function needBar(fit, room, where) {
  const kv = fit.kv_bytes ?? 0;
  const most = Math.max(room, fit.weights_bytes + kv);
  const part = (name, size) => sized(el("span", { class: `need-${name}` }), { width: (100 * size) / most });
  const mark = most > room ? sized(el("span", { class: "gauge-mark" }), { left: (100 * room) / most }) : null;
  const key = (name, text) => el("span", { class: "keyed" }, el("span", { class: `swatch need-${name}`, "aria-hidden": "true" }), text);
  const over = most > room ? `: ${bytes(most - room)} more than there is` : "";
  return el(
    "div",
    {},
    el("div", { class: "timeline need", "aria-hidden": "true" }, part("weights", fit.weights_bytes), kv ? part("kv", kv) : null, mark),
    el("p", {}, key("weights", `weights ${bytes(fit.weights_bytes)}`), kv ? [", ", key("kv", `KV cache ${bytes(kv)}`)] : null, ` of ${bytes(room)} ${where}${over}`),
  );
}

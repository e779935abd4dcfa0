// Agent runs: the list, and one run as a waterfall.

import { copyButton, linkHere } from "./copying.js";
import { el, facts, fill, sized, table } from "./dom.js";
import { clock, count, millis } from "./format.js";
import { runIssue } from "./issue.js";
import { ask } from "./source.js";

const PARTS = {
  queue: "waiting for the engine", load: "loading the model", prefill: "reading the prompt, needed",
  prefill_again: "reading known prompt again", decode: "generating", delivery: "waiting for the client to take it",
  slowtok: "slowtok itself", client: "tools and the client",
};
const POLL_MS = 2000;

/** Show the runs, or one of them; what is new of it every two seconds while `isHere`. */
export async function renderRuns(place, id, source, isHere) {
  let shown = null;
  let newest = null;
  // Made once: they keep the focus, and a text that lies there to be copied.
  const share = el("div", { class: "share" }, copyButton("Copy as issue", () => runIssue(newest, source.status)), copyButton("Copy link", linkHere));
  while (isHere()) {
    const asked = await ask(id ? `runs/${encodeURIComponent(id)}` : "runs");
    if (!isHere()) return;
    newest = asked;
    if (JSON.stringify(asked) !== shown) draw(place, id, asked, share);
    shown = JSON.stringify(asked);
    await new Promise((done) => setTimeout(done, POLL_MS));
  }
}

function draw(place, id, asked, share) {
  const focused = place.contains(document.activeElement) ? document.activeElement : null;
  if (!asked) fill(place, el("h1", {}, "Runs"), el("p", { class: "empty" }, id ? "No run with this id." : "No answer."));
  else fill(place, id ? one(asked, share) : list(asked.runs));
  const again = focused?.isConnected ? focused : focused?.href && place.querySelector(`a[href="${CSS.escape(focused.getAttribute("href"))}"]`);
  again?.focus({ preventScroll: true });
}

function list(runs) {
  if (!runs.length) return [el("h1", {}, "Runs"), el("p", { class: "empty" }, "No run yet: a run is two requests that belong together, or one with a name.")];
  const rows = runs.map((run) => [
    el("a", { href: `#runs/${encodeURIComponent(run.id)}` }, run.name ?? run.id.slice(0, 8)),
    clock(run.started), `${count(run.requests)}${run.live ? " …" : ""}`, millis(run.wall_ms), run.verdict,
    run.fix_first?.cause ?? "", run.fix_first ? millis(run.fix_first.wall_then_ms) : "",
  ]);
  return [el("h1", {}, "Runs"), table("Runs, the newest first", ["Run", "Started", "Requests", "Took", "Verdict", "Fix first", "Would take"], rows, { stacks: true })];
}

function one(run, share) {
  const first = run.fix_first;
  return [
    el("p", {}, el("a", { href: "#runs" }, "All runs")),
    el("h1", {}, `Run ${run.name ?? run.id}: ${run.verdict}`),
    share,
    el("p", {}, `${count(run.requests)} requests in ${millis(run.wall_ms)}: ${run.went_into}.`),
    first ? el("p", {}, el("strong", {}, `Fix first: ${first.cause}`), ` (lost ${millis(first.lost_ms)}); the run would then take about ${millis(first.wall_then_ms)}. ${first.hint}`) : null,
    facts(Object.entries(PARTS).map(([part, what]) => [[el("span", { class: "swatch", dataset: { part } }), what], run.split_ms[part] >= 1 ? millis(run.split_ms[part]) : null])),
    table("Requests of the run", ["Turn", "After", "Tools", "Prompt", "Cached", "Again", "Out", "Took", "When"], run.turns.map((turn) => row(turn, run)), { stacks: true }),
  ];
}

function row(turn, run) {
  const { prompt, cached, recomputed, completion } = turn.tokens;
  return [
    el("a", { href: `#request/${turn.request}` }, turn.turn), turn.parent ?? "", turn.client_ms === undefined ? "" : millis(turn.client_ms),
    count(prompt), count(cached), count(recomputed), count(completion), millis(turn.total_ms), bar(turn, run.wall_ms),
  ];
}

/** Where in the run a request was, a piece for each phase. */
function bar(turn, wall_ms) {
  const share = (ms) => (100 * ms) / Math.max(wall_ms, 1);
  let at_ms = turn.started_ms;
  const pieces = Object.entries(turn.split_ms).map(([part, ms]) => {
    const piece = sized(el("span", { dataset: { part }, title: `${PARTS[part]}: ${millis(ms)}` }), { left: share(at_ms), width: share(ms) });
    at_ms += ms;
    return piece;
  });
  return el("div", { class: "waterfall" }, pieces);
}

// One request in full: what was wrong, what to do, where the time went, and how it went.

import { copyButton, linkHere } from "./copying.js";
import { el, facts, fill, sized, table } from "./dom.js";
import { adviceOf, reasonSaid, verdictMore, verdictWord } from "./endings.js";
import { DASH, band, bytes, clock, count, firstCause, measured, millis, number, percent, rate, words } from "./format.js";
import { dropCharts } from "./chart.js";
import { requestIssue } from "./issue.js";
import { laneCharts } from "./lanes.js";

const PHASES = ["queue", "load", "prefill", "decode", "delivery"];

export async function renderRequest(place, id, source, isStill) {
  const record = await source.record(id);
  if (!isStill()) return;
  dropCharts(place);
  if (!record) {
    fill(place, back(), el("h1", {}, "No such request"), el("p", {}, "The proxy keeps the newest requests only. The log has the rest: slowtok explain ID."));
    return;
  }
  const lanes = el("div", { id: "lanes", "aria-busy": "true" }, el("p", { class: "muted" }, "Asking for the samples."));
  fill(
    place,
    back(),
    heading(record),
    el("div", { class: "share" }, copyButton("Copy as issue", () => requestIssue(record, source.status)), copyButton("Copy link", linkHere)),
    el("div", { class: "findings" }, judged(record)),
    section("Where the time went", timeline(record), budget(record)),
    section("Over time", lanes),
    section("The request", requestFacts(record)),
    expectation(record),
    section("Looked at and ruled out", chips(record.cleared)),
    record.unused?.length ? section("Present, without measurable cost", chips(record.unused)) : null,
    section("Not visible", hidden(record)),
    (record.gpu ?? []).map((gpu) => section(`GPU ${gpu.index}: ${gpu.name ?? "no name"}`, gpuFacts(gpu))),
    el("p", {}, el("a", { href: `requests/${id}` }, "This record as JSON"), " · ", el("a", { href: `requests/${id}/samples` }, "its samples as JSON")),
  );
  const series = await source.series(id);
  if (!lanes.isConnected) return;
  lanes.removeAttribute("aria-busy");
  fill(lanes, series ? laneCharts(series, record) : el("p", { class: "empty" }, "The samples of this request are no longer kept, or it only passed through."));
}

const back = () => el("p", {}, el("a", { href: "#now", class: "back" }, "← All requests"));
const section = (title, ...content) => el("section", { class: "part" }, el("h2", {}, title), content);

function heading(record) {
  const verdict = verdictWord(record);
  const title = { slow: record.phase ? `Slow in ${record.phase}` : "Slow", normal: "Normal for this hardware", unknown: "Cannot be judged", passed: "Passed through", failed: verdictMore(record) ? `Answered with ${verdictMore(record)}` : "Broken off", "client gone": "The client left before the end" };
  return el(
    "header",
    { class: "request-head" },
    el("h1", {}, el("span", { class: `pill ${verdict}` }, verdict), " ", title[verdict] ?? verdict),
    el("p", { class: "muted" }, `${record.model ?? record.path}, ${clock(record.ts)}, ${millis(record.timing?.total_ms)} in all`),
    el("p", { class: "big" }, mainLine(record)),
  );
}

/** What to see first: the phase that was slow, else the rate. */
function mainLine(record) {
  const { phase, timing = {}, rate: rates = {} } = record;
  if (!phase || phase === "decode") return rateLine(record);
  const pace = phase === "prefill" && rates.prefill_tps !== undefined ? ` (${rate(rates.prefill_tps)})` : "";
  return `${phase[0].toUpperCase()}${phase.slice(1)} took ${millis(timing[`${phase}_ms`])}${pace}`;
}

function rateLine(record) {
  const tps = record.rate?.decode_tps;
  if (tps === undefined) return "";
  const expected = band(record.expected);
  const ceiling = record.expected?.ceiling_tps;
  return `${rate(tps)}${expected ? `, expected ${expected}` : ""}${ceiling ? `, at most ${rate(ceiling)}` : ""}`;
}

function judged(record) {
  const findings = record.findings ?? [];
  const said = reasonSaid(record), advice = adviceOf(record), first = firstCause(record);
  return [
    said ? el("p", {}, said) : null,
    advice ? el("p", {}, `What to look at: ${advice}`) : null,
    record.verdict === "slow" && !findings.length ? el("article", { class: "finding" }, el("h2", {}, "Unexplained"), el("p", {}, "Below what is expected, and no known cause fits. What was ruled out and what could not be seen is below.")) : null,
    findings.map((found) => finding(found, found.cause === first)),
  ];
}

function finding(found, isFirst) {
  const role = found.informational ? "for your information" : isFirst ? "the cause to cure first" : "follows from it, or adds to it";
  const button = copyButton("Copy", () => found.remedy, `Copy what to do about ${found.cause}`);
  return el(
    "article",
    { class: found.informational ? "finding informational" : "finding" },
    el("h2", {}, found.cause, " ", el("small", { class: "muted" }, role)),
    el("p", {}, found.summary),
    el("p", { class: "muted" }, `${percent(found.confidence)} sure; ${costOf(found)}`),
    el("div", { class: "remedy" }, el("div", { class: "remedy-head" }, el("h3", {}, "What to do"), button), el("p", {}, found.remedy)),
    evidence(found),
  );
}

function costOf(found) {
  if (found.informational) return `its part of ${found.phase}: ${millis(found.lost_ms)}`;
  return found.lost_ms ? `it cost this request ${millis(found.lost_ms)} in ${found.phase}` : "its time is counted with the cause before it";
}

function evidence(found) {
  if (!found.evidence?.length) return null;
  const rows = found.evidence.map((e) => [words(e.name), measured(e.value, e.unit), e.limit === undefined ? DASH : measured(e.limit, e.unit)]);
  return el("details", { open: true }, el("summary", {}, "Evidence"), table(`Evidence for ${found.cause}`, ["Measured", "Value", "Held against"], rows));
}

function timeline(record) {
  const timing = record.timing ?? {};
  const known = PHASES.filter((phase) => timing[`${phase}_ms`] > 0).map((phase) => ({ phase, ms: timing[`${phase}_ms`] }));
  const total = timing.total_ms || known.reduce((sum, part) => sum + part.ms, 0);
  const rest = total - known.reduce((sum, part) => sum + part.ms, 0);
  const parts = rest > 0.01 * total ? [...known, { phase: "rest", ms: rest }] : known;
  const bar = el("div", { class: "timeline", "aria-hidden": "true" }, parts.map((part) => sized(el("span", { class: `phase ${part.phase}` }), { width: Math.max((100 * part.ms) / total, 0.3) })));
  const rows = parts.map((part) => [
    el("span", {}, el("span", { class: `swatch phase ${part.phase}`, "aria-hidden": "true" }), part.phase === "rest" ? "not separated" : part.phase),
    millis(part.ms),
    percent(part.ms / total),
  ]);
  const source = timing.source ? el("p", { class: "muted" }, `Prefill and decode: by ${{ engine: "the engine's own word", metrics: "the engine's counters", stream: "the stream's arrivals", estimate: "estimate" }[timing.source] ?? timing.source}.`) : null;
  return [bar, table("Time by phase", ["Phase", "Time", "Share"], rows), source];
}

function budget(record) {
  const entries = Object.entries(record.budget_ms_per_token ?? {}).filter(([, ms]) => ms > 0);
  if (!entries.length) return null;
  return el("div", {}, el("h3", {}, "Lost for each token"), table("Milliseconds lost for each token", ["Cause", "Lost"], entries.map(([cause, ms]) => [cause, `${number(ms)} ms`])));
}

function requestFacts(record) {
  const { timing = {}, tokens = {}, upstream = {} } = record;
  return facts([
    ["ID", record.id],
    ["Run", record.run ? el("a", { href: `#runs/${encodeURIComponent(record.run.id)}` }, `${record.run.id.slice(0, 8)}, request ${record.run.turn}`) : null],
    ["Engine", [upstream.kind, upstream.version].filter(Boolean).join(" ")],
    ["Address", upstream.url],
    ["Path", record.path],
    ["Streamed", record.stream ? "yes" : "no"],
    ["Ended", record.ended],
    ["Status", record.status],
    ["Prompt", tokens.prompt === undefined ? null : `${count(tokens.prompt)} tokens, ${tokens.cached === undefined ? "cached not reported" : `${count(tokens.cached)} cached`}`],
    ["Generated", tokens.completion === undefined ? null : `${count(tokens.completion)} tokens`],
    ["Drafted", tokens.drafted === undefined ? null : `${count(tokens.drafted)}, ${count(tokens.accepted)} accepted`],
    ["Decode rate", record.phase && record.phase !== "decode" ? rateLine(record) : null],
    ["Prefill rate", record.rate?.prefill_tps === undefined ? null : rate(record.rate.prefill_tps)],
    ["First token", timing.ttft_ms === undefined ? null : `after ${millis(timing.ttft_ms)}`],
    ["Between tokens", timing.itl_p50_ms === undefined ? null : `${millis(timing.itl_p50_ms)} median, ${millis(timing.itl_p99_ms)} p99`],
    ["Proxy", timing.proxy_ms === undefined ? null : millis(timing.proxy_ms)],
  ]);
}

function expectation(record) {
  const { basis, because = [], as_configured: configured } = record.expected ?? {};
  if (!basis && !because.length) return null;
  return section(
    "What the expectation rests on",
    basis ? el("p", {}, basis) : null,
    configured ? el("p", {}, `With the layers split as they are: ${number(configured.low_tps)} to ${rate(configured.high_tps)}.`) : null,
    because.length ? el("ul", {}, because.map((note) => el("li", {}, note))) : null,
  );
}

function chips(causes = []) {
  if (!causes.length) return el("p", { class: "muted" }, "Nothing.");
  return el("ul", { class: "chips" }, causes.map((cause) => el("li", {}, cause)));
}

function hidden(record) {
  const facts_ = record.not_visible ?? [];
  if (!facts_.length) return el("p", { class: "muted" }, "Nothing was missing.");
  return table("What could not be seen", ["Fact", "How to make it visible"], facts_.map((h) => [h.fact, h.how_to_enable ?? DASH]), { stacks: true });
}

function gpuFacts(gpu) {
  const spread = (name, write) => {
    const s = gpu[name];
    return s ? `${write(s.median)} (${write(s.p10)} to ${write(s.p90)})` : null;
  };
  const unit = (name) => (value) => `${number(value)} ${name}`;
  const shares = Object.entries(gpu.reasons ?? {}).map(([reason, share]) => `${reason} ${percent(share)}`).join(", ");
  return facts([
    ["Busy", spread("busy_ratio", percent)],
    ["Memory bandwidth in use", spread("dram_busy_ratio", percent)],
    ["Power", spread("power_w", unit("W"))],
    ["Power limit", spread("power_limit_w", unit("W"))],
    ["Processor clock", spread("sm_clock_mhz", unit("MHz"))],
    ["Memory clock", spread("memory_clock_mhz", unit("MHz"))],
    ["Temperature", spread("temperature_c", unit("°C"))],
    ["PCIe", gpu.pcie_generation ? `generation ${gpu.pcie_generation}, ${gpu.pcie_width ?? "?"} lanes` : null],
    ["Reasons for lower clocks", shares],
    ["Energy for a token", gpu.energy_j_per_token === undefined ? null : `${number(gpu.energy_j_per_token)} J`],
    ["VRAM of the server", gpu.vram?.server_bytes === undefined ? null : bytes(gpu.vram.server_bytes)],
    ["VRAM of others", gpu.vram?.others_bytes === undefined ? null : bytes(gpu.vram.others_bytes)],
    ["VRAM free", gpu.vram?.free_bytes === undefined ? null : bytes(gpu.vram.free_bytes)],
    ["Xid", gpu.xid],
  ]);
}

// A request or a run as Markdown for an issue: what was found, and on what. Pure.
//
// A record holds no prompt, no answer and no key. It does hold addresses and names that people
// gave; an issue is public, so they are left out before anything is written.

import { reasonSaid, verdictMore, verdictWord } from "./endings.js";
import { band, bytes, count, measured, millis, number, percent, rate, words } from "./format.js";

const PHASES = ["queue", "load", "prefill", "decode", "delivery"];
const ADDRESS = /\b[a-z][a-z0-9+.-]*:\/\/[^\s"'<>)\]]+/gi;
const IP = /(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?(?![\w.])|\[[0-9a-f]*:[0-9a-f:.]*\](?::\d+)?/gi;
const HOME = /(?:\/(?:home|Users)\/|\b[a-z]:\\+Users\\+)[^/\\\s"']+/gi;

/** One request; `status` is the proxy's, null where it is not known. */
export function requestIssue(whole, status) {
  const record = publicRecord(whole, hider([whole.upstream?.url], status));
  const { upstream = {}, timing = {}, rate: rates = {} } = record;
  const expected = band(record.expected);
  return page(`slowtok: ${verdictOf(record)}`, [
    reasonSaid(record) ? text(reasonSaid(record)) : null,
    record.verdict === "slow" && !record.findings?.length ? "Below what is expected, and no known cause fits." : null,
    pairs([
      ["Model", record.model],
      ["Engine", [upstream.kind, upstream.version].filter(Boolean).join(" ")],
      ...(record.gpu ?? []).map((gpu) => [`GPU ${gpu.index}`, deviceOf(gpu, status)]),
      ...machineOf(status, whole.upstream?.url),
      ["Decode", rates.decode_tps === undefined ? null : `${rate(rates.decode_tps)}${expected ? `, expected ${expected}` : ""}`],
      ["Prefill", rates.prefill_tps === undefined ? null : rate(rates.prefill_tps)],
      ["Tokens", tokensOf(record.tokens)],
    ]),
    rows("Phases", ["Phase", "Time"], [...PHASES, "total"].filter((phase) => timing[`${phase}_ms`] > 0).map((phase) => [phase, millis(timing[`${phase}_ms`])])),
    ...(record.findings ?? []).map(causeOf),
    list("Ruled out", record.cleared),
    list("Not visible", record.not_visible?.map((hidden) => hidden.fact)),
    json("The record", record),
  ]);
}

/** One run, as `/slowtok/runs/{id}` gives it. */
export function runIssue(whole, status) {
  const { name: _name, ...told } = whole;
  const run = cleaned(told, hider([], status));
  const first = run.fix_first;
  return page(`slowtok: a run of ${count(run.requests)} requests, ${run.verdict}`, [
    `${millis(run.wall_ms)}: ${text(run.went_into)}.`,
    first ? `**Fix first: ${first.cause}** (lost ${millis(first.lost_ms)}); the run would then take about ${millis(first.wall_then_ms)}. ${text(first.hint)}` : null,
    pairs([
      ["Models", run.models?.join(", ")],
      ["Clients", run.clients?.join(", ")],
      ...(status?.gpus ?? []).map((gpu) => [`GPU ${gpu.index}`, deviceOf(gpu, status)]),
      ...machineOf(status),
      ["Tokens", tokensOf(run.tokens)],
    ]),
    rows("Where the wall time went", ["Part", "Time"], Object.entries(run.split_ms).filter(([, ms]) => ms >= 1).map(([part, ms]) => [words(part), millis(ms)])),
    rows("Lost", ["Cause", "Time"], Object.entries(run.lost_ms ?? {}).map(([cause, ms]) => [cause, millis(ms)])),
    json("The run", run),
  ]);
}

function verdictOf(record) {
  const word = verdictWord(record), more = verdictMore(record);
  if (!more) return word;
  return `${word} ${word === "failed" ? "with" : "in"} ${more}`;
}

function causeOf(found) {
  const cost = found.lost_ms ? `, ${millis(found.lost_ms)} in ${found.phase}` : "";
  return [
    `### ${found.cause}`,
    `${text(found.summary)} (${percent(found.confidence)} sure${cost})`,
    rows(null, ["Evidence", "Value", "Held against"], (found.evidence ?? []).map((e) => [words(e.name), measured(e.value, e.unit), e.limit === undefined ? "" : measured(e.limit, e.unit)])),
    `Remedy: ${text(found.remedy)}`,
  ].filter(Boolean).join("\n\n");
}

function tokensOf({ prompt, cached, recomputed, completion } = {}) {
  const parts = [[prompt, "in the prompt"], [cached, "of them cached"], [recomputed, "computed again"], [completion, "generated"]];
  return parts.filter(([n]) => n !== undefined && n !== null).map(([n, what]) => `${count(n)} ${what}`).join(", ");
}

/** A GPU of a record or of the status; its driver is in the status alone. */
function deviceOf(gpu, status) {
  const known = status?.gpus?.find((one) => one.index === gpu.index && one.name === gpu.name);
  const size = gpu.vram?.total_bytes ?? known?.total_bytes;
  return [gpu.name, size ? bytes(size) : null, known?.driver ? `driver ${known.driver}` : null].filter(Boolean).join(", ");
}

/** The machine that slowtok sees, unless the engine is on another one. */
function machineOf(status, url = null) {
  const { machine = {}, engines = [], version } = status ?? {};
  const isElsewhere = engines.some((engine) => engine.local === false && (url === null || engine.url === url));
  return [
    ["CPU", machine.cpu_physical_cores && !isElsewhere ? `${number(machine.cpu_physical_cores)} cores` : null],
    ["RAM", machine.ram_bytes && !isElsewhere ? bytes(machine.ram_bytes) : null],
    ["System", isElsewhere ? null : machine.os],
    ["slowtok", version],
  ];
}

/** The record without addresses, given names and serial numbers. */
function publicRecord(record, hide) {
  const { upstream: { url: _url, name: _name, ...upstream } = {}, run, gpu, path, ...told } = record;
  return cleaned({
    ...told,
    path: path?.replace(/\?.*/, "").replace(/\/run\/[^/]+/, "/run/…"),
    upstream,
    run: run && { id: run.id, by: run.by, turn: run.turn, parent: run.parent },
    gpu: gpu?.map(({ uuid: _uuid, ...one }) => one),
  }, hide);
}

/** A function that takes addresses, the hosts that are known here and home folders out of a text. */
function hider(urls, status) {
  const hosts = [location.href, ...urls, ...(status?.engines ?? []).map((engine) => engine.url)].map(hostOf).filter((host) => host && host !== "localhost");
  const known = hosts.length ? new RegExp(`(?<![\\w.-])(?:${hosts.map(literally).join("|")})(?![\\w-])`, "g") : null;
  return (said) => {
    const plain = said.replace(ADDRESS, "(address)").replace(IP, "(address)").replace(HOME, "~");
    return known ? plain.replace(known, "(host)") : plain;
  };
}

const literally = (name) => name.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");

function hostOf(address) {
  try {
    return new URL(address).hostname;
  } catch {
    return null;
  }
}

function cleaned(value, hide) {
  if (typeof value === "string") return hide(value);
  if (Array.isArray(value)) return value.map((one) => cleaned(one, hide));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, cleaned(one, hide)]));
}

// Markdown. What comes from outside must not become markup or the end of a table's cell; behind @
// and # a space without width keeps names and numbers from becoming mentions.
const text = (said) => String(said).replace(/[\\`*_[\]<>|~]/g, "\\$&").replace(/[@#]/g, "$&\u200b").replace(/\s+/g, " ");

const page = (title, parts) => `${[`## ${title}`, ...parts].filter(Boolean).join("\n\n")}\n`;

function pairs(entries) {
  return entries.filter(([, value]) => value).map(([name, value]) => `- ${name}: ${text(value)}`).join("\n");
}

function rows(title, heads, cells) {
  if (!cells.length) return null;
  const line = (row) => `| ${row.map((cell) => text(cell)).join(" | ")} |`;
  return [title ? `### ${title}\n` : null, line(heads), `|${" --- |".repeat(heads.length)}`, ...cells.map(line)].filter(Boolean).join("\n");
}

const list = (title, names) => (names?.length ? `${title}: ${names.map(text).join(", ")}.` : null);

/** Data under a fold, in a fence: a line of JSON never begins with the fence's marks. */
const json = (title, value) => `<details><summary>${title} as JSON</summary>\n\n\`\`\`json\n${JSON.stringify(value, null, 1)}\n\`\`\`\n\n</details>`;

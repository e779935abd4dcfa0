// Trends: the rate of each setup over the days, against what it learned as healthy.

import { el, fill, table } from "./dom.js";
import { count, number, percent, rate } from "./format.js";
import { dropCharts, figure } from "./chart.js";

const DAY_S = 86400;

export function renderTrends(place, source) {
  const status = source.status;
  const learned = status?.baselines ?? [];
  const byDay = Map.groupBy ? Map.groupBy(status?.baselines_by_day ?? [], (row) => row.setup) : grouped(status?.baselines_by_day ?? []);
  const said = JSON.stringify([learned, status?.baselines_by_day]);
  if (place.dataset.said === said && place.childElementCount) return; // charts are not drawn again for nothing
  place.dataset.said = said;
  dropCharts(place);
  fill(
    place,
    el("h1", {}, "Trends"),
    el("p", { class: "muted" }, "Each setup is a device, a model, an engine and a size of context. The line is the median of healthy requests, the points are the medians of all requests of a day (UTC)."),
    learned.length ? el("div", { class: "charts" }, learned.map((row) => setup(row, byDay.get(row.setup) ?? [], status))) : el("p", { class: "empty" }, "Nothing was learned yet: that takes a few requests that are long enough."),
  );
}

function setup(row, days, status) {
  const title = titleOf(row.setup, status);
  const drift = row.drift_ratio === null || row.drift_ratio === undefined ? null : row.drift_ratio;
  const said = [
    row.median_tps === null ? "no healthy request yet" : `${rate(row.median_tps)} in ${requests(row.count)} that ${row.count === 1 ? "was" : "were"} healthy`,
    row.of_expected_ratio ? `${percent(row.of_expected_ratio)} of what was expected` : null,
    `${requests(row.seen)} in all`,
    drift === null ? null : `the newest day is at ${percent(drift)} of the two weeks before`,
  ].filter(Boolean).join("; ");
  return el(
    "article",
    { class: "part" },
    el("h2", {}, title.name),
    el("p", { class: "muted" }, title.rest),
    el("p", {}, said, "."),
    days.length ? [chartOf(row, days), tableOf(title.name, days)] : null,
  );
}

const requests = (n) => `${count(n)} ${n === 1 ? "request" : "requests"}`;

function chartOf(row, days) {
  const at = days.map((day) => Date.parse(`${day.day}T00:00:00Z`) / 1000);
  const alone = at.length === 1; // a line needs two ends
  return figure({
    title: "Rate by day",
    at: alone ? [at[0] - DAY_S, at[0], at[0] + DAY_S] : at,
    dates: true,
    format: rate,
    lanes: [
      { label: "median of the day", values: alone ? [null, days[0].median_tps, null] : days.map((day) => day.median_tps), colour: "line-1", points: true },
      { label: "healthy", values: row.median_tps === null ? [] : Array(alone ? 3 : at.length).fill(row.median_tps), colour: "line-3", dashed: true },
    ],
  });
}

function tableOf(name, days) {
  const rows = [...days].reverse().map((day) => [day.day, rate(day.median_tps), day.of_expected_ratio === null ? "–" : percent(day.of_expected_ratio), number(day.count)]);
  return el("details", {}, el("summary", {}, "As a table"), table(`${name} by day`, ["Day", "Median", "Of expected", "Requests"], rows));
}

/** A setup's own text, `decode | device | model | …`, as a title and the rest; names where they are known. */
function titleOf(text, status) {
  const [kind, device, model, ...rest] = text.split(" | ");
  const models = status.engines.flatMap((engine) => engine.models ?? []);
  const named = models.find((each) => each.digest && each.digest === model)?.name;
  const gpus = (device ?? "").split(",").map((uuid) => status.gpus.find((gpu) => gpu.uuid === uuid)?.name ?? uuid);
  const short = (model ?? "?").replace(/^sha256:/, "").replace(/^([0-9a-f]{12})[0-9a-f]{20,}$/, "$1");
  return { name: `${named ?? short}, ${kind}`, rest: [gpus.join(", ").replace(/^cpu$/, "CPU"), ...rest.map(inWords)].join(", ") };
}

/** One part of a setup's text in words. */
export function inWords(part) {
  const [name, value] = part.split(/ (.*)/);
  if (name === "kv" && value) return `KV cache ${value}`;
  if (name === "ctx" && value) return value === "?" ? "context not known" : `${value.replace("-", " to ")} tokens of context`;
  if (name === "prompt" && value) return value === "?" ? "prompt not known" : `${value.replace("-", " to ")} tokens of prompt`;
  if (/^\d+(-\d+)?$/.test(part)) return `${part.replace("-", " to ")} requests at once`;
  if (part === "alone") return "one request at a time";
  return part === "speculative" ? "speculative decoding" : part;
}

function grouped(rows) {
  const found = new Map();
  for (const row of rows) found.set(row.setup, [...(found.get(row.setup) ?? []), row]);
  return found;
}

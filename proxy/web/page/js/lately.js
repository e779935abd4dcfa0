// The answer before anybody asks: is it healthy, what was lost lately and to what, what to fix first.

import { el, fill } from "./dom.js";
import { verdictWord } from "./endings.js";
import { count, lostMs, millis } from "./format.js";

const LATELY_MS = 3600000; // of the records that the page has, 200 at most

export function renderLately(place, source) {
  const now_ms = Date.now();
  const judged = [...source.records.values()].filter((record) => record.verdict && now_ms - Date.parse(record.ts) < LATELY_MS);
  const slow = judged.filter((record) => verdictWord(record) === "slow");
  const said = place.dataset.said, tells = `${judged.length} ${slow.map((record) => record.id)}`;
  if (said === tells) return;
  place.dataset.said = tells;
  const title = el("h1", { id: "lately-title" }, headline(judged, slow));
  if (!slow.length) return fill(place, title);
  const lost_ms = sum(slow, lostMs), total_ms = sum(judged, (record) => record.timing?.total_ms);
  fill(place, title, el("p", {}, `They lost ${millis(lost_ms)} of ${millis(total_ms)} that all of them took.`), ...first(slow));
}

function headline(judged, slow) {
  if (!judged.length) return "No request lately";
  const all = `${count(judged.length)} ${judged.length === 1 ? "request" : "requests"} lately`;
  const failed = judged.filter((record) => verdictWord(record) === "failed").length;
  const more = failed ? `, ${count(failed)} failed` : "";
  if (slow.length) return `${count(slow.length)} slow of ${all}${more}`;
  const isHealthy = judged.some((record) => record.verdict === "normal") && !failed;
  return `${isHealthy ? "Healthy: " : ""}${all}, none slow${more}`;
}

/** What to fix first: the cause that most time was lost to, with the worst request and its remedy. */
function first(slow) {
  const causes = new Map();
  for (const record of slow) {
    for (const finding of record.findings ?? []) {
      if (finding.informational || !finding.lost_ms) continue;
      const known = causes.get(finding.cause) ?? { lost_ms: 0, requests: 0, worst: null, most_ms: 0 };
      known.lost_ms += finding.lost_ms;
      known.requests += 1;
      if (finding.lost_ms > known.most_ms) Object.assign(known, { worst: record, most_ms: finding.lost_ms, remedy: finding.remedy });
      causes.set(finding.cause, known);
    }
  }
  const [named] = [...causes].sort(([, a], [, b]) => b.lost_ms - a.lost_ms);
  if (!named) return [el("p", {}, "Their cause could not be seen; each request says what was not visible.")];
  const [cause, { lost_ms, requests, worst, remedy }] = named;
  const where = requests === 1 ? "one request" : `${count(requests)} requests, most in one`;
  return [
    el("p", {}, el("strong", {}, `Fix first: ${cause}`), ` (lost ${millis(lost_ms)} in `, el("a", { href: `#request/${worst.id}` }, where), `). ${remedy ?? ""}`),
  ];
}

function sum(records, of) {
  return records.reduce((all, record) => all + (of(record) ?? 0), 0);
}

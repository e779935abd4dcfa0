// Recent requests: a table that can be filtered, and walked through with the keyboard.

import { el } from "./dom.js";
import { reasonOf, verdictMore, verdictWord } from "./endings.js";
import { band, clock, count, firstCause, lostMs, millis, rate } from "./format.js";

const HEADS = ["Time", "Verdict", "Cause", "Model", "Path", "Decode", "Expected", "Tokens", "Lost", "Total"];
const rows = new Map(); // by id: records do not change

export function renderRecent(place, source, filters) {
  const records = [...source.records.values()];
  fillChoices(filters, records);
  const shown = records.filter(matcher(filters));
  if (filters.elements.order.value === "lost") shown.sort((a, b) => (lostMs(b) ?? -1) - (lostMs(a) ?? -1));
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.id : null;
  const body = place.querySelector("tbody");
  if (!shown.length) place.replaceChildren(el("p", { class: "empty" }, records.length ? "No request matches." : "No request yet."));
  else if (body) body.replaceChildren(...shown.map(row));
  else place.replaceChildren(wholeTable(shown));
  if (focused) place.querySelector(`a[data-id="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  forget(source.records);
  const said = `${shown.length} of ${records.length}`;
  const counter = document.getElementById("filter-count");
  if (counter.textContent !== said) counter.textContent = said;
}

/** Move the focus by `steps` rows; from nowhere to the first one. */
export function moveFocus(place, steps) {
  const links = [...place.querySelectorAll("a[data-id]")];
  const at = links.indexOf(document.activeElement);
  const next = at < 0 ? 0 : Math.min(Math.max(at + steps, 0), links.length - 1);
  links[next]?.focus();
}

export function describe(record) {
  const cause = firstCause(record);
  const named = cause ?? reasonOf(record);
  const tps = record.rate?.decode_tps;
  const verdict = [verdictWord(record), verdictWord(record) === "failed" ? verdictMore(record) : ""].filter(Boolean).join(" ");
  return [verdict, named, record.model ?? record.path, tps ? rate(tps) : null].filter(Boolean).join(", ");
}

function wholeTable(shown) {
  // Roles stand here because narrow screens lay the rows out as blocks, which would take them away.
  const head = el("tr", { role: "row" }, HEADS.map((name) => el("th", { scope: "col", role: "columnheader" }, name)));
  return el(
    "table",
    { class: "recent", role: "table" },
    el("caption", { class: "unseen" }, "Recent requests, the newest first"),
    el("thead", { role: "rowgroup" }, head),
    el("tbody", { role: "rowgroup" }, shown.map(row)),
  );
}

function row(record) {
  if (!rows.has(record.id)) rows.set(record.id, makeRow(record));
  return rows.get(record.id);
}

function makeRow(record) {
  const verdict = verdictWord(record), more = verdictMore(record), lost = lostMs(record), reason = reasonOf(record);
  const open = el("a", { href: `#request/${record.id}`, dataset: { id: record.id } }, clock(record.ts));
  const cells = [
    el("span", { class: `pill ${verdict}` }, verdict, more ? el("span", { class: "pill-phase" }, ` ${more}`) : ""),
    firstCause(record) ?? (verdict === "slow" ? "unexplained" : reason ? el("span", { class: "muted" }, reason) : ""),
    record.model ?? "",
    el("span", { class: "muted" }, breakable(record.path ?? "")),
    record.rate?.decode_tps === undefined ? "" : rate(record.rate.decode_tps),
    (record.rate?.decode_tps !== undefined && band(record.expected)) || "",
    record.tokens ? `${count(record.tokens.prompt)} in, ${count(record.tokens.completion)} out` : "",
    lost ? millis(lost) : "",
    millis(record.timing?.total_ms),
  ];
  const made = el(
    "tr",
    { role: "row", dataset: { verdict } },
    el("th", { scope: "row", role: "rowheader", dataset: { head: HEADS[0] } }, open),
    cells.map((cell, i) => el("td", { role: "cell", dataset: { head: HEADS[i + 1] }, class: cell === "" ? "blank" : null }, cell)),
  );
  made.addEventListener("click", (event) => {
    if (!event.target.closest("a") && !String(getSelection())) open.click();
  });
  return made;
}

/** A path that wraps behind its slashes. */
const breakable = (path) => path.split(/(?<=\/)/).flatMap((part) => [part, el("wbr")]);

function matcher(filters) {
  const wanted = Object.fromEntries(new FormData(filters));
  const text = wanted.text.trim().toLowerCase();
  return (record) => {
    const causes = (record.findings ?? []).map((finding) => finding.cause);
    if (wanted.verdict && verdictWord(record) !== wanted.verdict) return false;
    if (wanted.cause && !causes.includes(wanted.cause)) return false;
    if (wanted.model && record.model !== wanted.model) return false;
    if (!text) return true;
    const held = [record.id, record.model, record.path, record.upstream?.name, record.ended, verdictWord(record), ...causes];
    return held.some((value) => value?.toLowerCase().includes(text));
  };
}

function fillChoices(filters, records) {
  fill(filters.elements.verdict, records.map(verdictWord));
  fill(filters.elements.cause, records.flatMap((record) => (record.findings ?? []).map((finding) => finding.cause)));
  fill(filters.elements.model, records.map((record) => record.model));
}

function fill(select, values) {
  const wanted = [...new Set(values.filter(Boolean))].sort();
  const present = [...select.options].slice(1).map((option) => option.value);
  if (wanted.join("\n") === present.join("\n")) return;
  const chosen = select.value;
  select.replaceChildren(select.options[0], ...wanted.map((value) => el("option", { value }, value)));
  select.value = wanted.includes(chosen) ? chosen : "";
}

function forget(records) {
  for (const id of rows.keys()) if (!records.has(id)) rows.delete(id);
}

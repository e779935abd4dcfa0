// The page: which view is shown, what the keys do, and who is told of what is new.

import { announce } from "./dom.js";
import { dropCharts } from "./chart.js";
import { describe, moveFocus, renderRecent } from "./requests.js";
import { renderLately } from "./lately.js";
import { renderMachine } from "./machine.js";
import { renderRequest } from "./request.js";
import { renderRunning } from "./running.js";
import { renderRuns } from "./runs.js";
import { renderTrends } from "./trends.js";
import { Source } from "./source.js";

const byId = (id) => document.getElementById(id);
const lately = byId("lately"), recent = byId("recent"), filters = byId("filters"), running = byId("running");
const LINK_WORDS = { connecting: "connecting", live: "live", polling: "asking each second", offline: "no answer" };
let view = { name: "now", id: null };
let lastOpened = null;

const source = new Source((what) => {
  if (what.record) announce(`New request: ${describe(what.record)}`);
  else if (what === "link") showLink();
  else if (what === "running" && view.name === "now") renderRunning(running, source);
  else if (what === "records" && view.name === "now") drawRecords();
  else if (what === "status" && view.name === "machine") renderMachine(byId("view-machine"), source);
  else if (what === "status" && view.name === "trends") renderTrends(byId("view-trends"), source);
});

function showLink() {
  const place = byId("link-state");
  place.dataset.state = source.link;
  place.textContent = LINK_WORDS[source.link];
  if (view.name === "now") renderRunning(running, source);
  else if (view.name === "machine") renderMachine(byId("view-machine"), source);
}

/** Show what the address asks for. */
function route() {
  const [name, id] = location.hash.slice(1).split("/");
  const known = ["now", "request", "runs", "machine", "trends"].includes(name) ? name : "now";
  const before = view;
  view = { name: known, id: id ? decodeId(id) : null };
  if (view.name === "request") lastOpened = view.id;
  for (const each of ["now", "request", "runs", "machine", "trends"]) byId(`view-${each}`).hidden = each !== view.name;
  for (const link of document.querySelectorAll("nav a")) {
    const isHere = link.dataset.view === (view.name === "request" ? "now" : view.name);
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  draw();
  if (before.name !== view.name || before.id !== view.id) arrive(before);
}

function decodeId(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function draw() {
  const shown = view;
  if (view.name === "now") {
    renderRunning(running, source);
    drawRecords();
  } else if (view.name === "request") {
    renderRequest(byId("view-request"), view.id, source, () => view === shown);
  } else if (view.name === "runs") {
    renderRuns(byId("view-runs"), view.id, source, () => view === shown);
  } else if (view.name === "machine") {
    renderMachine(byId("view-machine"), source);
  } else {
    renderTrends(byId("view-trends"), source);
  }
}

function drawRecords() {
  renderLately(lately, source);
  renderRecent(recent, source, filters);
}

/** Put the focus where reading begins: on the row that was opened, or at the view's top. */
function arrive(before) {
  const row = view.name === "now" && before.name === "request" && lastOpened
    ? recent.querySelector(`a[data-id="${CSS.escape(lastOpened)}"]`)
    : null;
  if (row) return row.focus();
  byId("content").focus({ preventScroll: true });
  scrollTo(0, 0);
}

function onKey(event) {
  const typing = event.target.closest?.("input, select, textarea");
  if (event.key === "Escape" && typing) return typing.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && view.name === "request") location.hash = "#now";
  else if (event.key === "/" && view.name === "now") focusFilter(event);
  else if (["j", "k", "ArrowDown", "ArrowUp"].includes(event.key)) step(event);
}

function filter() {
  renderRecent(recent, source, filters);
  announce(`${byId("filter-count").textContent} requests`);
}

function focusFilter(event) {
  event.preventDefault();
  filters.elements.text.focus();
}

/** `j` and `k` walk through the list, and from request to request; arrows only within the list. */
function step(event) {
  const steps = event.key === "j" || event.key === "ArrowDown" ? 1 : -1;
  const isArrow = event.key.startsWith("Arrow");
  if (view.name === "now" && (!isArrow || recent.contains(document.activeElement))) {
    event.preventDefault();
    moveFocus(recent, steps);
  } else if (view.name === "request" && !isArrow) {
    const ids = [...source.records.keys()];
    const next = ids[ids.indexOf(view.id) + steps];
    if (next) location.hash = `#request/${next}`;
  }
}

addEventListener("hashchange", route);
addEventListener("keydown", onKey);
for (const change of ["input", "change"]) filters.addEventListener(change, filter);
filters.addEventListener("reset", () => setTimeout(filter)); // its fields are emptied after the event
filters.addEventListener("submit", (event) => event.preventDefault());
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the view
  byId("content").focus();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const place of document.querySelectorAll("main > section")) dropCharts(place);
  delete byId("view-trends").dataset.said;
  draw();
});
// Silence is news, too: no event says that nothing comes.
setInterval(() => view.name === "now" && source.running.size && renderRunning(running, source), 1000);

route();
source.start();

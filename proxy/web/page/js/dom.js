// Elements out of data. Text only ever becomes text: nothing here reads markup.

/** Make an element: el("td", { class: "num", onclick: f, dataset: { id } }, "text", child, null). */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "dataset") Object.assign(made.dataset, value);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...real(children));
  return made;
}

/** Put these in place of what an element holds; lists are opened, and what is null is left out. */
export function fill(place, ...children) {
  place.replaceChildren(...real(children));
}

const real = (children) => children.flat(Infinity).filter((child) => child !== null && child !== undefined);

/** Set a width in percent; through the object model, which the content policy allows. */
export function sized(element, { left = null, width = null }) {
  if (left !== null) element.style.left = `${left}%`;
  if (width !== null) element.style.width = `${width}%`;
  return element;
}

/**
 * A table with a caption for those who cannot see it; rows are lists of cells. One that `stacks` has
 * its cells one below the other on narrow screens; roles stand there, because that would take them away.
 */
export function table(caption, heads, rows, { stacks = false } = {}) {
  return el(
    "table",
    { class: stacks ? "stacks" : null, role: "table" },
    el("caption", { class: "unseen" }, caption),
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, heads.map((head) => el("th", { scope: "col", role: "columnheader" }, head)))),
    el("tbody", { role: "rowgroup" }, rows.map((row) => el("tr", { role: "row" }, row.map((cell, i) => asCell(cell, heads[i], i))))),
  );
}

function asCell(cell, head, i) {
  if (i === 0) return el("th", { scope: "row", role: "rowheader" }, cell ?? "");
  return el("td", { role: "cell", dataset: { head } }, cell ?? "");
}

/** A list of names and values; entries without a value are left out. */
export function facts(entries) {
  const known = entries.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el("dl", { class: "facts" }, known.map(([name, value]) => el("div", { class: String(value).length > 48 ? "long" : String(value).length > 20 ? "wide" : null }, el("dt", {}, name), el("dd", {}, value))));
}

/** Say something to a screen reader, after what it says now. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

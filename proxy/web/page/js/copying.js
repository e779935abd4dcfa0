// Buttons that copy: to the clipboard, or where that is refused, as a text that lies there selected.

import { announce, el } from "./dom.js";

const SAID_MS = 2000;
const REFUSED = "The browser refuses to copy. The text is selected: copy it with the keys.";

/** A button that copies what `text()` gives at that moment; `spoken` is its name for screen readers. */
export function copyButton(label, text, spoken = null) {
  const button = el("button", { type: "button", class: "copy", "aria-label": spoken }, label);
  const holder = el("div", { class: "copying" }, button);
  button.addEventListener("click", async () => {
    const wanted = text();
    for (const old of [...holder.children].slice(1)) old.remove();
    const done = await copy(wanted);
    button.textContent = done ? "Copied" : label;
    announce(done ? "Copied" : REFUSED);
    if (!done) showSelected(holder, wanted);
    setTimeout(() => (button.textContent = label), SAID_MS);
  });
  return holder;
}

/** The address of what is shown, without the name and key that it may hold. */
export const linkHere = () => `${location.origin}${location.pathname}${location.hash}`;

/** Copy text; where the browser gives no clipboard (plain HTTP from elsewhere), by a selection. */
async function copy(text) {
  if (navigator.clipboard && window.isSecureContext) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch { /* not allowed: the old way may be */ }
  }
  const field = el("textarea", { class: "unseen", "aria-hidden": "true", tabindex: "-1" });
  field.value = text;
  const before = document.activeElement;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  before?.focus();
  return done;
}

function showSelected(holder, text) {
  const field = el("textarea", { readonly: true, rows: 8, "aria-label": "The text to copy" });
  field.value = text;
  holder.append(el("p", { class: "muted" }, REFUSED), field);
  field.focus();
  field.select();
  field.scrollTop = 0;
}

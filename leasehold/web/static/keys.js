// The keyboard: `/` searches, `j` and `k` move, `x` picks, Enter opens, `g` and a letter goes.
import { toggle } from "./bulk.js";

let going = 0;

const KEYS = {
  "/": () => document.getElementById("q")?.focus(),
  "?": () => document.getElementById("keys")?.showModal(),
  j: () => move(1),
  k: () => move(-1),
  x: () => toggle(document.activeElement.closest("tr")?.querySelector("[data-pick]")),
  t: () => document.getElementById("zone")?.click(),
  g: () => { going = Date.now(); },
};

function move(step) {
  const links = [...document.querySelectorAll("main a.row")].filter((link) => link.offsetParent !== null);
  if (!links.length) return;
  const here = links.indexOf(document.activeElement.closest("tr, li")?.querySelector("a.row") ?? document.activeElement);
  const next = here < 0 ? (step > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, here + step));
  links[next].focus();
  links[next].scrollIntoView({ block: "nearest" });
}

function isTyping(element) {
  return element.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(element.nodeName) && element.type !== "checkbox";
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (isTyping(event.target)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const link = Date.now() - going < 1500 ? document.querySelector(`[data-go="${CSS.escape(event.key)}"]`) : null;
  going = 0;
  const act = link ? () => link.click() : Object.hasOwn(KEYS, event.key) ? KEYS[event.key] : null;
  if (!act) return;
  event.preventDefault();
  act();
});

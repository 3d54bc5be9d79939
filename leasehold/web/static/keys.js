// The keyboard: `/` searches, `j` and `k` move, `x` picks, Enter opens, `g` and a letter goes.
import { toggle } from "./bulk.js";
import { turnZone } from "./look.js";

let going = 0;

function rows() {
  return [...document.querySelectorAll("main a.row")].filter((link) => link.offsetParent !== null);
}

function move(step) {
  const links = rows();
  if (!links.length) return;
  const here = links.indexOf(document.activeElement.closest?.("tr, li")?.querySelector("a.row") ?? document.activeElement);
  const next = here < 0 ? (step > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, here + step));
  links[next].focus();
  links[next].scrollIntoView({ block: "nearest" });
}

function pick() {
  const box = document.activeElement.closest?.("tr")?.querySelector("[data-pick]");
  if (box) toggle(box);
}

function isTyping(element) {
  return element.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(element.nodeName) && element.type !== "checkbox";
}

function handle(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (isTyping(event.target)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (going && Date.now() - going < 1500) {
    going = 0;
    const link = document.querySelector(`[data-go="${CSS.escape(event.key)}"]`);
    if (link) {
      event.preventDefault();
      link.click();
      return;
    }
  }
  const keys = {
    "/": () => document.getElementById("q")?.focus(),
    "?": () => document.getElementById("keys")?.showModal(),
    j: () => move(1),
    k: () => move(-1),
    x: pick,
    t: turnZone,
    g: () => { going = Date.now(); },
  };
  if (keys[event.key]) {
    event.preventDefault();
    keys[event.key]();
  }
}

export function startKeys() {
  document.addEventListener("keydown", handle);
}

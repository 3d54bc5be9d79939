// Makes one tree like another and leaves alone what is alike, so that focus, selection and scrolling stay.
import { showTime, showTimes } from "./times.js";

// What scripts and people set, and the server knows nothing of.
const THEIRS = { A: ["data-expired"], DETAILS: ["open"], DIALOG: ["open"], INPUT: ["value", "checked"], TR: ["aria-selected"] };

// The name of an element with a key, by which it is found again wherever it stands.
function nameOf(node) {
  const key = node.nodeType === Node.ELEMENT_NODE ? node.id || node.dataset.key : "";
  return key ? `${node.nodeName} ${key}` : "";
}

function alike(a, b) {
  return a.nodeType === b.nodeType && a.nodeName === b.nodeName && nameOf(a) === nameOf(b);
}

function attributes(from, to) {
  const theirs = THEIRS[from.nodeName] || [];
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name) && !theirs.includes(name)) from.removeAttribute(name);
  }
  for (const { name, value } of to.attributes) {
    if (from.getAttribute(name) !== value && !theirs.includes(name)) from.setAttribute(name, value);
  }
}

export function morph(from, to) {
  if (from.nodeType !== Node.ELEMENT_NODE) {
    if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
    return;
  }
  if (from.hasAttribute("data-keep")) return;
  if (from.nodeName === "TIME") {
    if (from.dateTime !== to.dateTime || from.dataset.t !== to.dataset.t) {
      attributes(from, to);
      showTime(from);
    }
    return;
  }
  attributes(from, to);
  children(from, to);
}

function children(from, to) {
  // Of children with the same name the n-th becomes the n-th.
  const named = new Map();
  for (const child of from.children) {
    const name = nameOf(child);
    if (name) named.set(name, [...(named.get(name) ?? []), child]);
  }
  let here = from.firstChild;
  for (const wanted of [...to.childNodes]) {
    const known = named.get(nameOf(wanted))?.shift();
    if (known && known !== here) {
      from.insertBefore(known, here);
      morph(known, wanted);
    } else if (here && alike(here, wanted)) {
      const next = here.nextSibling;
      morph(here, wanted);
      here = next;
    } else {
      const fresh = document.importNode(wanted, true);
      from.insertBefore(fresh, here);
      if (fresh.nodeName === "TIME") showTime(fresh);
      else if (fresh.nodeType === Node.ELEMENT_NODE) showTimes(fresh);
    }
  }
  while (here) {
    const next = here.nextSibling;
    here.remove();
    here = next;
  }
}

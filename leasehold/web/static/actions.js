// Buttons and forms that change something: sent as JSON with the page's own value, and answered in words.
import { refresh } from "./live.js";

const base = document.documentElement.dataset.base;

export async function post(path, body) {
  const csrf = document.querySelector('meta[name="csrf"]')?.content || "";
  let answer;
  try {
    answer = await fetch(base + path, {
      method: "POST",
      headers: { "content-type": "application/json", "x-leasehold-csrf": csrf },
      body: JSON.stringify(body),
    });
  } catch {
    return { ok: false, told: { message: "the server does not answer; nothing is known of what became of it" } };
  }
  const told = await answer.json().catch(() => ({ message: `the server answered ${answer.status}` }));
  return { ok: answer.ok, told };
}

export function toast(message, { bad = false, link = null } = {}) {
  const box = document.createElement("p");
  box.className = bad ? "toast bad" : "toast";
  box.textContent = message;
  if (link) {
    const anchor = document.createElement("a");
    anchor.href = base + link;
    anchor.textContent = "Open";
    box.append(anchor);
  }
  document.getElementById("toasts").append(box);
  setTimeout(() => box.remove(), bad ? 10000 : 5000);
}

// Asks; gives true for yes. With `word`, only after it was typed.
export function sure(text, { title = "Are you sure?", yes = "Do it", word = "" } = {}) {
  const dialog = document.getElementById("confirm");
  const input = document.getElementById("confirm-input");
  const button = document.getElementById("confirm-yes");
  document.getElementById("confirm-title").textContent = title;
  document.getElementById("confirm-text").textContent = text;
  document.getElementById("confirm-typed").hidden = !word;
  document.getElementById("confirm-word").textContent = word;
  document.getElementById("confirm-progress").hidden = true;
  button.textContent = yes;
  input.value = "";
  const check = () => { button.disabled = Boolean(word) && input.value.trim() !== word; };
  check();
  input.oninput = check;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

async function act(path, body, { error = null } = {}) {
  const { ok, told } = await post(path, body);
  if (!ok) {
    if (error) {
      error.textContent = told.message;
      error.hidden = false;
    } else toast(told.message, { bad: true });
    return false;
  }
  if (told.go) {
    location.assign(base + told.go);
    return true;
  }
  toast(told.message, { link: told.job });
  await refresh();
  return true;
}

async function press(button) {
  const body = JSON.parse(button.dataset.body);
  if (button.dataset.confirm && !(await sure(button.dataset.confirm))) return;
  button.disabled = true;
  await act(button.dataset.post, body);
  button.disabled = false;
}

function fill(dialog, values) {
  for (const [name, value] of Object.entries(values)) {
    const field = dialog.querySelector(`[name="${name}"]`);
    if (field) field.value = value;
  }
  const error = dialog.querySelector("[data-error]");
  if (error) error.hidden = true;
}

function randomKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function submit(form) {
  const body = Object.fromEntries(new FormData(form));
  if (form.hasAttribute("data-fresh-key")) {
    form.dataset.key ||= randomKey();
    body.key = form.dataset.key;
  }
  const error = form.querySelector("[data-error]");
  if (error) error.hidden = true;
  if (await act(form.dataset.post, body, { error })) form.closest("dialog")?.close();
}

export function startActions() {
  document.addEventListener("click", (event) => {
    const target = event.target instanceof Element ? event.target : null;
    const posting = target?.closest("button[data-post]");
    if (posting) press(posting);
    const opening = target?.closest("[data-dialog]");
    if (opening) {
      const dialog = document.getElementById(opening.dataset.dialog);
      if (opening.dataset.fill) fill(dialog, JSON.parse(opening.dataset.fill));
      else fill(dialog, {});
      delete dialog.querySelector("[data-fresh-key]")?.dataset.key;
      dialog.showModal();
    }
    if (target?.closest("[data-close]")) target.closest("dialog").close();
    const copying = target?.closest("[data-copy]");
    if (copying) copy(copying.dataset.copy);
  });
  document.addEventListener("submit", (event) => {
    if (!event.target.dataset.post) return;
    event.preventDefault();
    submit(event.target);
  });
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("copied");
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    toast(done ? "copied" : "the browser does not allow it", { bad: !done });
  }
}

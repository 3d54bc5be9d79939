// Buttons and forms that change something: sent as JSON with the page's own value, and answered in words.
import { html } from "./dom.js";
import { refresh } from "./live.js";

const { base } = document.documentElement.dataset;

// The server's answer to an action, and `ok`: whether the action was carried out.
export async function post(path, body) {
  const csrf = document.querySelector('meta[name="csrf"]')?.content || "";
  const headers = { "content-type": "application/json", "x-leasehold-csrf": csrf };
  try {
    const answer = await fetch(base + path, { method: "POST", headers, body: JSON.stringify(body) });
    const said = await answer.json().catch(() => ({ message: `the server answered ${answer.status}` }));
    return { ...said, ok: answer.ok };
  } catch {
    return { ok: false, message: "the server does not answer; whether it was done is not known" };
  }
}

export function toast(message, { bad = false, link = null } = {}) {
  const open = link ? html("a", { href: base + link }, "Open") : null;
  const box = html("p", { class: bad ? "toast bad" : "toast" }, message, open);
  document.getElementById("toasts").append(box);
  setTimeout(() => box.remove(), bad ? 10000 : 5000);
}

// Asks; returns true for yes. With `word`, only after it was typed.
export function sure(text, { title = "Are you sure?", yes = "Do it", word = "" } = {}) {
  const dialog = document.getElementById("confirm");
  const part = (name) => document.getElementById(`confirm-${name}`);
  const [input, button] = [part("input"), part("yes")];
  part("title").textContent = title;
  part("text").textContent = text;
  part("typed").hidden = !word;
  part("word").textContent = word;
  button.textContent = yes;
  button.disabled = Boolean(word);
  input.value = "";
  input.oninput = () => { button.disabled = input.value.trim() !== word; };
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

// Carries out an action and shows the answer, a refusal in the form's own place for it; returns whether it was done.
async function act(path, body, error = null) {
  const { ok, message, go, job } = await post(path, body);
  if (!ok && error) {
    error.textContent = message;
    error.hidden = false;
  } else if (ok && go) location.assign(base + go);
  else toast(message, { bad: !ok, link: job });
  if (ok && !go) await refresh();
  return ok;
}

async function press(button) {
  if (button.dataset.confirm && !(await sure(button.dataset.confirm))) return;
  button.disabled = true;
  await act(button.dataset.post, JSON.parse(button.dataset.body));
  button.disabled = false;
}

function open(dialog, values) {
  for (const [name, value] of Object.entries(values)) dialog.querySelector(`[name="${name}"]`).value = value;
  const error = dialog.querySelector("[data-error]");
  if (error) error.hidden = true;
  delete dialog.querySelector("[data-fresh-key]")?.dataset.key;
  dialog.showModal();
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
  if (await act(form.dataset.post, body, error)) form.closest("dialog")?.close();
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("copied");
  } catch {
    const area = html("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    toast(done ? "copied" : "the browser does not allow it", { bad: !done });
  }
}

const CLICKS = {
  "button[data-post]": press,
  "[data-dialog]": ({ dataset }) => open(document.getElementById(dataset.dialog), JSON.parse(dataset.fill ?? "{}")),
  "[data-close]": (button) => button.closest("dialog").close(),
  "[data-copy]": (button) => copy(button.dataset.copy),
};

document.addEventListener("click", ({ target }) => {
  for (const [selector, react] of Object.entries(CLICKS)) {
    const found = target instanceof Element ? target.closest(selector) : null;
    if (found) react(found);
  }
});
document.addEventListener("submit", (event) => {
  if (!event.target.dataset.post) return;
  event.preventDefault();
  submit(event.target);
});

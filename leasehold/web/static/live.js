// Keeps the page current: the server says when to look, the page is fetched again, and what has changed is put in place.
import { morph } from "./morph.js";
import { setNow } from "./times.js";

const root = document.documentElement;
const base = root.dataset.base;
const WORDS = { live: "live", polling: "polling", away: "no database", connecting: "connecting", lost: "not connected" };
const POLL = 5000;
const SILENCE = 15000;

let source = null;
let polling = 0;
let fetching = false;
let again = false;
let etag = null;
let heard = 0;

function say(state) {
  const element = document.getElementById("live");
  if (!element || element.dataset.state === state) return;
  element.dataset.state = state === "lost" ? "away" : state;
  element.querySelector("span").textContent = WORDS[state];
}

export async function refresh() {
  if (fetching) {
    again = true;
    return;
  }
  fetching = true;
  try {
    await look();
  } finally {
    fetching = false;
  }
  if (again) {
    again = false;
    await refresh();
  }
}

async function look() {
  const here = location.href;
  let answer;
  try {
    answer = await fetch(here, { headers: etag ? { "if-none-match": etag } : {}, cache: "no-store" });
  } catch {
    say("lost");
    return;
  }
  if (answer.headers.get("x-now")) setNow(answer.headers.get("x-now"));
  if (answer.status === 401 || answer.redirected) {
    location.assign(`${base}/sign-in`);
    return;
  }
  if (answer.status === 503) say("away");
  if (answer.status === 200 && location.href === here) {
    etag = answer.headers.get("etag");
    put(new DOMParser().parseFromString(await answer.text(), "text/html"));
  }
  await score();
  document.dispatchEvent(new CustomEvent("leasehold:refresh"));
}

function put(fresh) {
  const open = document.querySelector("dialog[open]");
  for (const section of document.querySelectorAll("[data-live]")) {
    const wanted = fresh.getElementById(section.id);
    if (wanted && !open?.contains(section)) {
      const before = section.dataset.news;
      morph(section, wanted);
      if (section.dataset.news !== before) document.getElementById("news").textContent = section.dataset.news;
    }
  }
  document.dispatchEvent(new CustomEvent("leasehold:changed"));
}

async function score() {
  const list = document.querySelector("#score dl");
  if (!list) return;
  const answer = await fetch(`${base}/data/scoreboard`).catch(() => null);
  if (!answer?.ok) return;
  const figures = Object.entries(await answer.json());
  list.replaceChildren(
    ...figures.map(([name, value]) => {
      const pair = document.createElement("div");
      const term = document.createElement("dt");
      const figure = document.createElement("dd");
      term.textContent = name;
      figure.textContent = typeof value === "number" ? value.toLocaleString("en") : String(value);
      pair.append(term, figure);
      return pair;
    }),
  );
}

function listen() {
  if (source || document.hidden) return;
  source = new EventSource(`${base}/live`);
  heard = Date.now();
  source.onmessage = (event) => {
    heard = Date.now();
    clearInterval(polling);
    polling = 0;
    const told = JSON.parse(event.data);
    setNow(told.at);
    say(told.database === "here" ? "live" : "away");
    if (told.database === "here") refresh();
  };
  source.onerror = () => {
    if (polling) return;
    say("polling");
    polling = setInterval(poll, POLL);
    if (source?.readyState === EventSource.CLOSED) {
      source = null;
    }
  };
}

// A stream that says nothing any more, while something in between keeps it open, is as good as none.
function watch() {
  if (!source || polling || document.hidden || Date.now() - heard < SILENCE) return;
  source.close();
  source = null;
  say("polling");
  polling = setInterval(poll, POLL);
}

async function poll() {
  await refresh();
  if (!source) listen();
}

function hush() {
  source?.close();
  source = null;
  clearInterval(polling);
  polling = 0;
}

export function startLive() {
  if (!document.getElementById("live")) return;
  score();
  listen();
  setInterval(watch, POLL);
  document.addEventListener("visibilitychange", () => (document.hidden ? hush() : listen()));
  window.addEventListener("pagehide", hush);
  window.addEventListener("pageshow", listen);
}

// Keeps the page current: the server sends an event, the page is fetched again, and what has changed is put in place.
import { html } from "./dom.js";
import { morph } from "./morph.js";
import { setNow } from "./times.js";

const { base } = document.documentElement.dataset;
const WORDS = { live: "live", polling: "polling", away: "no database", lost: "not connected" };
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
  again = true;
  if (fetching) return;
  fetching = true;
  try {
    while (again) {
      again = false;
      await load();
    }
  } finally {
    fetching = false;
  }
}

async function load() {
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
    if (!wanted || open?.contains(section)) continue;
    const before = section.dataset.news;
    morph(section, wanted);
    if (section.dataset.news !== before) document.getElementById("news").textContent = section.dataset.news;
  }
  document.dispatchEvent(new CustomEvent("leasehold:changed"));
}

async function score() {
  const list = document.querySelector("#score dl");
  const answer = list && await fetch(`${base}/data/scoreboard`).catch(() => null);
  if (!answer?.ok) return;
  const figure = (value) => (typeof value === "number" ? value.toLocaleString("en") : String(value));
  const pair = ([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, figure(value)));
  list.replaceChildren(...Object.entries(await answer.json()).map(pair));
}

function listen() {
  if (source || document.hidden) return;
  source = new EventSource(`${base}/live`);
  heard = Date.now();
  source.onmessage = (event) => {
    heard = Date.now();
    clearInterval(polling);
    polling = 0;
    const { at, database } = JSON.parse(event.data);
    setNow(at);
    say(database === "here" ? "live" : "away");
    if (database === "here") refresh();
  };
  source.onerror = () => {
    if (source?.readyState === EventSource.CLOSED) source = null;
    poll();
  };
}

// Polls until an event comes, and opens a stream that was closed again.
function poll() {
  if (polling) return;
  say("polling");
  polling = setInterval(async () => {
    await refresh();
    listen();
  }, POLL);
}

function close() {
  source?.close();
  source = null;
}

function hush() {
  close();
  clearInterval(polling);
  polling = 0;
}

if (document.getElementById("live")) {
  score();
  listen();
  // A stream on which nothing arrives, because something in between keeps it open, is closed.
  setInterval(() => {
    if (!source || polling || document.hidden || Date.now() - heard < SILENCE) return;
    close();
    poll();
  }, POLL);
  document.addEventListener("visibilitychange", () => (document.hidden ? hush() : listen()));
  window.addEventListener("pagehide", hush);
  window.addEventListener("pageshow", listen);
}

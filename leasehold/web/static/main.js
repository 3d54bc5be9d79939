// Brings the pages to life; a page without scripts can still be read. Each import starts by itself.
import "./actions.js";
import "./bulk.js";
import "./keys.js";
import "./live.js";
import { showTimes } from "./times.js";

// Light or dark, local time or UTC: kept in cookies, so that the server's first answer is right already.
const root = document.documentElement;

function choose(name, value, words) {
  root.dataset[name] = value;
  document.cookie = `leasehold_${name}=${value}; path=${root.dataset.base || "/"}; max-age=31536000; samesite=strict`;
  document.getElementById(name).textContent = words;
  document.dispatchEvent(new CustomEvent("leasehold:refresh"));
}

document.getElementById("zone")?.addEventListener("click", () => {
  const utc = root.dataset.zone !== "utc";
  choose("zone", utc ? "utc" : "local", utc ? "UTC" : "Local");
  showTimes(document);
});
document.getElementById("theme")?.addEventListener("click", () => {
  const theme = { auto: "light", light: "dark", dark: "auto" }[root.dataset.theme];
  choose("theme", theme, theme[0].toUpperCase() + theme.slice(1));
  document.querySelector('meta[name="color-scheme"]').content = theme === "auto" ? "light dark" : theme;
});
root.dataset.ready = "";

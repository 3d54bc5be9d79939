// Light or dark, local time or UTC: kept in cookies, so that the server's first answer is right already.
import { showTimes } from "./times.js";

const root = document.documentElement;

function keep(name, value) {
  document.cookie = `leasehold_${name}=${value}; path=${root.dataset.base || "/"}; max-age=31536000; samesite=strict`;
}

export function turnZone() {
  const zone = root.dataset.zone === "utc" ? "local" : "utc";
  root.dataset.zone = zone;
  keep("zone", zone);
  const button = document.getElementById("zone");
  if (button) button.textContent = zone === "utc" ? "UTC" : "Local";
  showTimes(document);
  document.dispatchEvent(new CustomEvent("leasehold:refresh"));
}

export function startLook() {
  document.getElementById("zone")?.addEventListener("click", turnZone);
  document.getElementById("theme")?.addEventListener("click", (event) => {
    const order = ["auto", "light", "dark"];
    const theme = order[(order.indexOf(root.dataset.theme) + 1) % order.length];
    root.dataset.theme = theme;
    keep("theme", theme);
    event.currentTarget.textContent = theme[0].toUpperCase() + theme.slice(1);
    document.querySelector('meta[name="color-scheme"]').content = theme === "auto" ? "light dark" : theme;
    document.dispatchEvent(new CustomEvent("leasehold:refresh"));
  });
}

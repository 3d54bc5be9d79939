// Shows moments in the viewer's way, by the server's clock: the viewer's own may be wrong.
const root = document.documentElement;
let offset = 0;

export function setNow(text) {
  const server = Date.parse(text);
  if (!Number.isNaN(server)) offset = server - Date.now();
}

export function now() {
  return Date.now() + offset;
}

export function span(milliseconds) {
  const seconds = Math.abs(milliseconds) / 1000;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  for (let i = 0; i < 3; i += 1) {
    const [size, unit] = units[i];
    if (seconds < size) continue;
    const whole = Math.floor(seconds / size);
    const rest = Math.floor((seconds % size) / units[i + 1][0]);
    return rest && whole < 10 ? `${whole} ${unit} ${rest} ${units[i + 1][1]}` : `${whole} ${unit}`;
  }
  return "";
}

export function clock(moment) {
  const utc = root.dataset.zone === "utc";
  const two = (value) => String(value).padStart(2, "0");
  const d = new Date(moment);
  const part = (name) => (utc ? d[`getUTC${name}`]() : d[`get${name}`]());
  const day = `${part("FullYear")}-${two(part("Month") + 1)}-${two(part("Date"))}`;
  return `${day} ${two(part("Hours"))}:${two(part("Minutes"))}:${two(part("Seconds"))}${utc ? " UTC" : ""}`;
}

export function showTime(element) {
  const moment = Date.parse(element.dateTime);
  if (Number.isNaN(moment)) return;
  const away = moment - now();
  let text;
  switch (element.dataset.t) {
    case "at": text = clock(moment); break;
    case "age": text = span(Math.min(0, away)); break;
    case "in": text = away > 0 ? `in ${span(away)}` : "due"; break;
    case "in-at": text = `${clock(moment)} (${away > 0 ? `in ${span(away)}` : "due"})`; break;
    case "left": {
      const expired = away <= 0;
      text = expired ? `✕ expired ${span(away)}` : span(away);
      element.closest(".cell")?.toggleAttribute("data-expired", expired);
      break;
    }
    default: text = away > 1500 ? `in ${span(away)}` : away > -1500 ? "now" : `${span(away)} ago`;
  }
  if (element.textContent !== text) element.textContent = text;
  const title = element.dataset.t === "at" || element.dataset.t === "in-at" ? new Date(moment).toISOString() : clock(moment);
  if (element.title !== title) element.title = title;
}

export function showTimes(scope) {
  for (const element of scope.querySelectorAll("time[data-t]")) showTime(element);
}

export function startTimes() {
  setNow(root.dataset.now);
  showTimes(document);
  setInterval(() => showTimes(document), 1000);
}

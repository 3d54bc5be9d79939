// Shows moments in the viewer's zone, or in UTC, by the server's clock: the viewer's own may be wrong.
const root = document.documentElement;
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
let offset = 0;

export function setNow(text) {
  const server = Date.parse(text);
  if (!Number.isNaN(server)) offset = server - Date.now();
}

function span(milliseconds) {
  const seconds = Math.abs(milliseconds) / 1000;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const [[size, unit], [smaller, name]] = UNITS.slice(UNITS.findIndex(([least]) => seconds >= least));
  const whole = Math.floor(seconds / size);
  const rest = Math.floor((seconds % size) / smaller);
  return rest && whole < 10 ? `${whole} ${unit} ${rest} ${name}` : `${whole} ${unit}`;
}

// Milliseconds from the zone that is shown to UTC.
export function zoneOf(moment) {
  return root.dataset.zone === "utc" ? 0 : new Date(moment).getTimezoneOffset() * 60000;
}

export function clock(moment) {
  const text = new Date(moment - zoneOf(moment)).toISOString().slice(0, 19).replace("T", " ");
  return root.dataset.zone === "utc" ? `${text} UTC` : text;
}

const until = (away) => (away > 0 ? `in ${span(away)}` : "due");
const FORMS = {
  at: (away, moment) => clock(moment),
  age: (away) => span(Math.min(0, away)),
  in: until,
  "in-at": (away, moment) => `${clock(moment)} (${until(away)})`,
  left: (away) => (away > 0 ? span(away) : `✕ expired ${span(away)}`),
  ago: (away) => (away > 1500 ? `in ${span(away)}` : away > -1500 ? "now" : `${span(away)} ago`),
};

export function showTime(element) {
  const moment = Date.parse(element.dateTime);
  if (Number.isNaN(moment)) return;
  const form = element.dataset.t;
  const away = moment - Date.now() - offset;
  const text = FORMS[form](away, moment);
  if (form === "left") element.closest(".cell")?.toggleAttribute("data-expired", away <= 0);
  if (element.textContent !== text) element.textContent = text;
  const title = form.endsWith("at") ? new Date(moment).toISOString() : clock(moment);
  if (element.title !== title) element.title = title;
}

export function showTimes(scope) {
  for (const element of scope.querySelectorAll("time[data-t]")) showTime(element);
}

setNow(root.dataset.now);
showTimes(document);
setInterval(() => showTimes(document), 1000);

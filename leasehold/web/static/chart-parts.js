// What the charts share: words for figures, scales, the frame with its legend, tooltip and table.
import { html, set, svg } from "./dom.js";
import { clock, zoneOf } from "./times.js";

// Words for figures

export function duration(seconds) {
  if (seconds === null) return "none";
  if (seconds < 0.00095) return "under 1 ms";
  const units = [[1, 0.001, "ms"], [60, 1, "s"], [3600, 60, "min"], [129600, 3600, "h"], [Infinity, 86400, "days"]];
  const [, size, unit] = units.find(([below]) => seconds < below);
  const value = seconds / size;
  return `${value < 9.95 ? Number(value.toFixed(1)) : Math.round(value)} ${unit}`;
}

export function number(value) {
  if (value === null) return "none";
  if (value < 9.95) return String(Number(value.toPrecision(2)));
  return Math.round(value).toLocaleString("en");
}

// Scales

export function linear(top, bottom, most) {
  const highest = most > 0 ? most : 1;
  const rough = highest / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const ceiling = Math.ceil(highest / step - 1e-9) * step;
  const ticks = Array.from({ length: Math.round(ceiling / step) + 1 }, (_, n) => Number((n * step).toPrecision(12)));
  return { place: (value) => bottom - (value / ceiling) * (bottom - top), ticks };
}

const STOPS = [0.0001, 0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 36000, 360000];

// Of durations in seconds: it begins and ends at lengths that people know.
export function logarithmic(top, bottom, least, most) {
  const low = Math.max(1, STOPS.findLastIndex((stop) => stop <= least));
  const high = Math.max(low + 1, STOPS.findIndex((stop) => stop >= most));
  const [from, to] = [Math.log(STOPS[low]), Math.log(STOPS[high])];
  const place = (value) => {
    const within = Math.min(to, Math.max(from, Math.log(Math.max(value, 1e-9))));
    return bottom - ((within - from) / (to - from)) * (bottom - top);
  };
  return { place, ticks: STOPS.slice(low, high + 1) };
}

const MINUTE = 60000;
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10080].map((minutes) => minutes * MINUTE);

// Moments, each with its label.
export function timeTicks(from, to, width) {
  const most = Math.max(2, Math.floor(width / 80));
  const step = STEPS.find((size) => (to - from) / size <= most) ?? STEPS.at(-1);
  const zone = zoneOf(from);
  const ticks = [];
  for (let at = Math.ceil((from - zone) / step) * step + zone; at <= to; at += step) ticks.push(at);
  return ticks.map((at) => {
    const text = clock(at);
    const time = text.slice(11, 16);
    return [at, step >= 1440 * MINUTE || time === "00:00" ? text.slice(5, 10) : time];
  });
}

// The frame: made once for each element, so that what is drawn anew does not flicker

const frames = new WeakMap();
const watcher = new ResizeObserver((entries) => entries.forEach(({ target }) => frames.get(target)?.redraw()));

export function frameOf(element) {
  if (!frames.has(element)) {
    frames.set(element, new Frame(element));
    watcher.observe(element);
  }
  return frames.get(element);
}

class Frame {
  constructor(element) {
    this.element = element;
    this.legend = html("ul", { class: "chart-legend" });
    this.canvas = svg("svg", { "aria-hidden": "true", class: "chart-canvas" });
    this.tip = html("div", { class: "chart-tip", role: "status", hidden: true });
    this.plot = html("div", { class: "chart-plot", tabindex: "0", role: "group" }, this.canvas, this.tip);
    this.message = html("p", { class: "chart-empty", hidden: true });
    this.table = html("div", { class: "chart-scroll", tabindex: "0", role: "region" });
    this.details = html("details", { class: "chart-table" }, html("summary", {}, "Show as a table"), this.table);
    element.replaceChildren(this.legend, this.plot, this.message, this.details);
    element.classList.add("chart");
    this.index = null;
    this.width = 0;
    this.details.addEventListener("toggle", () => this.tabulate());
    this.plot.addEventListener("pointermove", (event) => this.pointAt(event.clientX, event.clientY));
    this.plot.addEventListener("pointerleave", () => this.point(null));
    this.plot.addEventListener("blur", () => this.point(null));
    this.plot.addEventListener("keydown", (event) => this.key(event));
  }

  // view: {title, count, draw(canvas, width, height) -> {x(i), left, right, top, bottom}, lines(i, y), table() -> {head, rows}}
  show(view) {
    this.view = view;
    this.message.hidden = !view.empty;
    this.message.textContent = view.empty;
    for (const part of [this.plot, this.legend, this.details]) part.hidden = Boolean(view.empty);
    if (view.empty) return;
    this.plot.setAttribute("aria-label", `${view.title}. Left and right arrow keys read the figures.`);
    this.table.setAttribute("aria-label", `${view.title}, as a table`);
    this.legend.replaceChildren(...view.legend());
    this.redraw(true);
    this.tabulate();
  }

  redraw(always = false) {
    const width = Math.floor(this.element.clientWidth);
    if (!this.view || this.plot.hidden || width < 40 || (!always && width === this.width)) return;
    this.width = width;
    const height = width < 420 ? 150 : 180;
    set(this.canvas, { viewBox: `0 0 ${width} ${height}`, width, height }).replaceChildren();
    this.area = this.view.draw(this.canvas, width, height);
    this.cross = svg("line", { class: "chart-cross", y1: this.area.top, y2: this.area.bottom, visibility: "hidden" });
    this.canvas.append(this.cross);
    if (this.index !== null) this.point(Math.min(this.index, this.view.count - 1), this.row);
  }

  pointAt(clientX, clientY) {
    const box = this.canvas.getBoundingClientRect();
    const share = (clientX - box.left - this.area.left) / (this.area.right - this.area.left);
    const index = Math.round(share * (this.view.count - 1) + (this.view.cells ? -0.5 + share : 0));
    if (index < 0 || index >= this.view.count) this.point(null);
    else this.point(index, clientY - box.top);
  }

  key(event) {
    const last = this.view.count - 1;
    const at = this.index ?? last + (event.key === "ArrowLeft" ? 1 : 0);
    const wanted = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") this.point(null);
    if (wanted === undefined) return;
    event.preventDefault();
    this.point(Math.max(0, Math.min(last, wanted)));
  }

  point(index, row) {
    this.index = index;
    this.row = row;
    this.tip.hidden = index === null;
    this.cross.setAttribute("visibility", index === null ? "hidden" : "visible");
    if (index === null) return;
    const x = this.area.x(index);
    set(this.cross, { x1: x, x2: x });
    const [head, ...lines] = this.view.lines(index, row);
    this.tip.replaceChildren(
      html("strong", {}, head),
      ...lines.map(([name, value, mark]) => html("span", {}, mark ? swatch(mark) : null, `${name} `, html("b", {}, value))),
    );
    const room = this.width - this.tip.offsetWidth - 4;
    this.tip.style.left = `${Math.max(0, Math.min(room, x < this.width / 2 ? x + 10 : x - this.tip.offsetWidth - 10))}px`;
  }

  tabulate() {
    if (!this.details.open || !this.view) return;
    const { head, rows } = this.view.table();
    const cell = (kind, scope) => (text) => html(kind, { scope }, text);
    this.table.replaceChildren(
      html("table", {},
        html("caption", { class: "hidden" }, this.view.title),
        html("thead", {}, html("tr", {}, ...head.map(cell("th", "col")))),
        html("tbody", {}, ...rows.map(([first, ...rest]) => html("tr", {}, cell("th", "row")(first), ...rest.map(cell("td"))))),
      ),
    );
  }
}

// The mark of a series: the same in the legend and in the tooltip. A line's is a line, dashed as it is.
export function swatch({ key, line }) {
  const shape = line
    ? svg("line", { x1: 0, x2: 18, y1: 6, y2: 6, class: `chart-line of-${key}` })
    : svg("rect", { x: 3, y: 0, width: 12, height: 12, class: `chart-fill of-${key}`, fill: patternOf(key) });
  return svg("svg", { width: 18, height: 12, class: "chart-swatch", "aria-hidden": "true" }, shape);
}

export function patternOf(key) {
  return ["failed", "retry", "created"].includes(key) ? `url(#leasehold-${key})` : null;
}

// Hatchings, once in a page: an area is known by them too, not by its colour alone.
export function hatchings() {
  if (document.getElementById("leasehold-failed")) return;
  const hatch = (key, ...lines) => svg("pattern", { id: `leasehold-${key}`, width: 6, height: 6, patternUnits: "userSpaceOnUse" },
    svg("rect", { width: 6, height: 6, class: `chart-ground of-${key}` }), ...lines.map((d) => svg("path", { d, class: `chart-hatch of-${key}` })));
  document.body.append(svg("svg", { width: 0, height: 0, class: "chart-hatchings", "aria-hidden": "true" }, svg("defs", {},
    hatch("failed", "M-1,1 l2,-2 M0,6 l6,-6 M5,7 l2,-2"),
    hatch("retry", "M-1,5 l2,2 M0,0 l6,6 M5,-1 l2,2"),
    hatch("created", "M1,1 h1.5 M4,4 h1.5"))));
}

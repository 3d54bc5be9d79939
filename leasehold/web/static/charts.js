// Charts of what /ops/statistics returns, drawn as SVG. An element with data-chart and data-src is drawn by itself, and
// again at each leasehold:refresh; those with the same address share one answer.
import { duration, frameOf, hatchings, linear, logarithmic, number, patternOf, swatch, timeTicks } from "./chart-parts.js";
import { html, svg } from "./dom.js";
import { clock } from "./times.js";

const moment = (at) => clock(at).slice(5);

// Axes

function area(width, height) {
  return { left: 52, right: width - 10, top: 8, bottom: height - 22 };
}

function drawTimes(canvas, box, times, place) {
  for (const [at, label] of timeTicks(times[0], times.at(-1), box.right - box.left)) {
    const x = place(at);
    if (x < box.left - 1 || x > box.right + 1) continue;
    const anchor = x > box.right - 16 ? "end" : "middle";
    canvas.append(
      svg("line", { x1: x, x2: x, y1: box.bottom, y2: box.bottom + 4, class: "chart-tick" }),
      svg("text", { x, y: box.bottom + 16, "text-anchor": anchor, class: "chart-label" }, label),
    );
  }
}

function drawLevels(canvas, box, scale, words) {
  for (const tick of scale.ticks) {
    const y = scale.place(tick);
    canvas.append(
      svg("line", { x1: box.left, x2: box.right, y1: y, y2: y, class: "chart-grid" }),
      svg("text", { x: box.left - 6, y: y + 4, "text-anchor": "end", class: "chart-label" }, words(tick)),
    );
  }
}

// Lines, or areas that stand on each other, over time.
// spec: {title, times, series: [{name, key, values}], words, empty, stacked, log, more(i)}
function timeSeries(element, { title, times, words, empty, stacked = false, log = false, more = () => [], ...spec }) {
  const series = spec.series.map((one) => ({ ...one, line: !stacked }));
  hatchings();
  const all = series.flatMap(({ values }) => values.filter((value) => value !== null));
  const sums = times.map((_, i) => series.reduce((sum, { values }) => sum + (values[i] ?? 0), 0));
  const shown = (value) => (value === null ? "none" : words(value));
  const latest = (values) => values.findLast((value) => value !== null) ?? null;
  const draw = (canvas, width, height) => {
    const box = area(width, height);
    const scale = log
      ? logarithmic(box.top, box.bottom, Math.min(...all), Math.max(...all))
      : linear(box.top, box.bottom, Math.max(...(stacked ? sums : all)));
    const reach = Math.max(1, times.at(-1) - times[0]);
    const place = (at) => box.left + ((at - times[0]) / reach) * (box.right - box.left);
    const x = (i) => place(times[i]);
    drawLevels(canvas, box, scale, words);
    drawTimes(canvas, box, times, place);
    if (stacked) drawAreas(canvas, series, times, x, scale.place);
    else drawLines(canvas, series, x, scale.place);
    return { ...box, x };
  };
  frameOf(element).show({
    title, draw, count: times.length, empty: all.length === 0 || (stacked && !sums.some(Boolean)) ? empty : "",
    legend: () => series.map((one) => html("li", {}, swatch(one), `${one.name} `, html("b", {}, shown(latest(one.values))))),
    lines: (i) => [moment(times[i]), ...series.map((one) => [one.name, shown(one.values[i]), one]).reverse(), ...more(i)],
    table: () => ({
      head: ["Time", ...series.map(({ name }) => name)],
      rows: times.map((at, i) => [moment(at), ...series.map(({ values }) => shown(values[i]))]),
    }),
  });
}

function drawAreas(canvas, series, times, x, y) {
  const floor = times.map(() => 0);
  for (const { key, values } of series) {
    const lower = floor.map((value, i) => `${x(i)},${y(value)}`).reverse();
    times.forEach((_, i) => { floor[i] += values[i] ?? 0; });
    const upper = floor.map((value, i) => `${x(i)},${y(value)}`);
    // Where there is nothing of it, its edge would only hide the one below.
    const there = (i) => [i - 1, i, i + 1].some((near) => values[near] > 0);
    const edge = upper.map((point, i) => (there(i) ? `${there(i - 1) && i ? "L" : "M"}${point}` : "")).join("");
    canvas.append(
      svg("path", { d: `M${upper.join("L")}L${lower.join("L")}Z`, class: `chart-fill of-${key}`, fill: patternOf(key) }),
      svg("path", { d: edge, class: `chart-edge of-${key}` }),
    );
  }
}

function drawLines(canvas, series, x, y) {
  for (const { key, values } of series) {
    const there = (i) => (values[i] ?? null) !== null;
    const known = values.map((_, i) => i).filter(there);
    for (const i of known.filter((i) => !there(i - 1) && !there(i + 1))) {
      canvas.append(svg("circle", { cx: x(i), cy: y(values[i]), r: 1.75, class: `chart-dot of-${key}` }));
    }
    const path = known.map((i) => `${there(i - 1) ? "L" : "M"}${x(i)},${y(values[i])}`).join("");
    canvas.append(svg("path", { d: path, class: `chart-line of-${key}` }));
  }
}

// How many took how long, over time. spec: {title, times, bounds, counts: one list of classes for each time}
function heatmap(element, { title, times, bounds, counts, empty }) {
  const used = bounds.concat(Infinity).map((_, place) => place).filter((place) => counts.some((list) => list[place] > 0));
  const low = Math.max(0, Math.min(...used) - 1);
  const high = Math.min(bounds.length, Math.max(...used) + 1);
  const rows = high - low + 1;
  const most = Math.max(0, ...counts.flat());
  const range = (place) => (place === 0 ? `up to ${duration(bounds[0])}`
    : place === bounds.length ? `over ${duration(bounds[place - 1])}` : `${duration(bounds[place - 1])} to ${duration(bounds[place])}`);
  const busiest = (i) => counts[i].indexOf(Math.max(...counts[i]));
  const total = (i) => counts[i].reduce((sum, count) => sum + count, 0);
  let rowAt = null;
  const draw = (canvas, width, height) => {
    const box = area(width, height);
    const wide = (box.right - box.left) / times.length;
    const tall = (box.bottom - box.top) / rows;
    const top = (place) => box.bottom - (place - low + 1) * tall;
    rowAt = (y) => low + Math.floor((box.bottom - y) / tall);
    const every = Math.max(1, Math.ceil(rows / 6));
    const ticks = bounds.map((_, place) => place).filter((place) => place >= low && place < high && (place - low) % every === 0);
    drawLevels(canvas, box, { ticks, place: top }, (place) => duration(bounds[place]));
    counts.forEach((list, i) => list.forEach((count, place) => {
      if (count) canvas.append(cell(heatOf(count / most), box.left + i * wide, top(place), size(wide), size(tall)));
    }));
    const step = times.length > 1 ? times[1] - times[0] : 60000;
    drawTimes(canvas, box, times, (at) => box.left + ((at - times[0]) / step) * wide);
    return { ...box, x: (i) => box.left + (i + 0.5) * wide };
  };
  frameOf(element).show({
    title, draw, count: times.length, cells: true, empty: used.length === 0 ? empty : "",
    legend: () => [html("li", {}, "fewer ", heatScale(), " more, at most ", html("b", {}, number(most)))],
    lines: (i, y) => {
      const place = Math.max(low, Math.min(high, y === undefined ? busiest(i) : rowAt(y)));
      return [moment(times[i]), [range(place), `${number(counts[i][place])} of ${number(total(i))}`]];
    },
    table: () => ({
      head: ["Time", "Jobs", "Most of them took"],
      rows: times.map((at, i) => [moment(at), number(total(i)), total(i) ? range(busiest(i)) : "none"]),
    }),
  });
}

const HEAT = [0.14, 0.3, 0.46, 0.62, 0.8, 1];
const heatOf = (share) => HEAT[Math.max(1, Math.ceil(Math.sqrt(share) * 6)) - 1];
const size = (length) => Math.max(1, length - (length > 4 ? 1 : 0));

function cell(heat, x, y, width, height) {
  return svg("rect", { x, y, width, height, "fill-opacity": heat, class: "chart-cell" });
}

function heatScale() {
  const cells = HEAT.map((heat, n) => cell(heat, n * 12, 0, 11, 12));
  return svg("svg", { width: 72, height: 12, class: "chart-swatch", "aria-hidden": "true" }, ...cells);
}

// What each kind of chart shows of the answer

const times = (answer) => answer.buckets.map(({ at }) => Date.parse(at));
const lengths = (title, what, empty) => (element, answer) => timeSeries(element, {
  title, times: times(answer), words: duration, log: true, empty,
  series: ["p50", "p95", "p99"].map((key) => ({ name: key, key, values: answer.buckets.map((bucket) => bucket[what][key]) })),
});

const KINDS = {
  throughput: (element, answer) => {
    const { buckets, step } = answer;
    const series = (name, key) => ({ name, key, values: buckets.map((bucket) => bucket[key] / step) });
    const share = ({ success, failed }) => (success + failed ? `${number((100 * failed) / (success + failed))} %` : "none");
    timeSeries(element, {
      title: "Attempts that ended, a second", times: times(answer), words: (value) => `${number(value)}/s`, stacked: true,
      series: [series("succeeded", "success"), series("failed", "failed")],
      more: (i) => [["error rate", share(buckets[i])], ["died", number(buckets[i].dead)]],
      empty: "No job has ended in this time.",
    });
  },
  wait: lengths("How long jobs waited", "wait", "No job was claimed in this time."),
  run: lengths("How long jobs ran", "run", "No job has run in this time."),
  heatmap: (element, answer) => heatmap(element, {
    title: "Jobs by how long they waited", times: times(answer), bounds: answer.bounds, counts: answer.buckets.map(({ waits }) => waits),
    empty: "No job was claimed in this time.",
  }),
  flow: (element, answer) => {
    const flow = answer.flow ?? [];
    const states = ["finished", "running", "queued", "retry", "created"];
    timeSeries(element, {
      title: "Jobs by state", times: flow.map(({ at }) => Date.parse(at)), words: number, stacked: true,
      series: states.map((name) => ({ name, key: name, values: flow.map((sample) => sample[name]) })),
      more: (i) => [["arrived", number(flow[i].arrived)], ["dead", number(flow[i].dead)]],
      empty: answer.flow === null ? "Shown for all queues together only." : flow.length ? "There are no jobs." : "The first samples come within a minute.",
    });
  },
};

// Fetching

const EVERY = 5000;
const answers = new Map();

function ask(source) {
  const known = answers.get(source);
  if (known && performance.now() - known.at < EVERY) return known.answer;
  const answer = fetch(source).then((response) => (response.ok ? response.json() : null)).catch(() => null);
  answers.set(source, { at: performance.now(), answer });
  return answer;
}

function drawAll() {
  for (const element of document.querySelectorAll("[data-chart]")) {
    ask(element.dataset.src).then((answer) => {
      if (answer) KINDS[element.dataset.chart](element, answer);
      else if (!element.classList.contains("chart")) element.textContent = "The figures cannot be had right now.";
    });
  }
}

document.addEventListener("leasehold:refresh", drawAll);
drawAll();

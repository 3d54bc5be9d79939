// Charts of what /ops/statistics tells, drawn as SVG. An element with data-chart and data-src is drawn by itself, and
// again at each leasehold:refresh; those with the same address share one answer.
import { duration, frameOf, hatchings, html, linear, logarithmic, moment, number, patternOf, svg, swatch, timeTicks } from "./chart-parts.js";

const MARGIN = { left: 52, right: 10, top: 8, bottom: 22 };

// Frames of axes

function area(width, height) {
  return { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
}

function drawTimes(canvas, box, times, place) {
  const { ticks, days } = timeTicks(times[0], times[times.length - 1], box.right - box.left);
  for (const at of ticks) {
    const x = place(at);
    if (x < box.left - 1 || x > box.right + 1) continue;
    const [day, time] = moment(at);
    const anchor = x > box.right - 16 ? "end" : "middle";
    canvas.append(
      svg("line", { x1: x, x2: x, y1: box.bottom, y2: box.bottom + 4, class: "chart-tick" }),
      svg("text", { x, y: box.bottom + 16, "text-anchor": anchor, class: "chart-label" }, days || time === "00:00" ? day : time),
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

function legendOf(series, words) {
  return series.map(({ name, key, line, values }) => {
    const latest = values.findLast((value) => value !== null);
    return html("li", {}, swatch({ key, line }), `${name} `, html("b", {}, latest === undefined ? "none" : words(latest)));
  });
}

// Lines, or areas that stand on each other, over time.
// spec: {title, times, series: [{name, key, values}], words, stacked, log, more(i)}
export function timeSeries(element, spec) {
  const { title, times, words, stacked = false, log = false, more = () => [] } = spec;
  const series = spec.series.map((one) => ({ ...one, line: !stacked }));
  hatchings();
  const all = series.flatMap(({ values }) => values.filter((value) => value !== null));
  const sums = times.map((_, i) => series.reduce((sum, { values }) => sum + (values[i] ?? 0), 0));
  const draw = (canvas, width, height) => {
    const box = area(width, height);
    const scale = log
      ? logarithmic(box.top, box.bottom, Math.min(...all), Math.max(...all))
      : linear(box.top, box.bottom, Math.max(...(stacked ? sums : all)));
    const reach = Math.max(1, times[times.length - 1] - times[0]);
    const place = (at) => box.left + ((at - times[0]) / reach) * (box.right - box.left);
    const x = (i) => place(times[i]);
    drawLevels(canvas, box, scale, words);
    drawTimes(canvas, box, times, place);
    if (stacked) drawAreas(canvas, series, times, x, scale.place);
    else drawLines(canvas, series, x, scale.place);
    return { ...box, x };
  };
  frameOf(element).show({
    title, draw, count: times.length, empty: all.length === 0 || (stacked && !sums.some(Boolean)) ? spec.empty : "",
    legend: () => legendOf(series, words),
    lines: (i) => [
      moment(times[i], true),
      ...series.map(({ name, key, line, values }) => [name, values[i] === null ? "none" : words(values[i]), { key, line }]).reverse(),
      ...more(i),
    ],
    table: () => ({
      head: ["Time", ...series.map(({ name }) => name)],
      rows: times.map((at, i) => [moment(at, true), ...series.map(({ values }) => (values[i] === null ? "none" : words(values[i])))]),
    }),
  });
}

export function stackedArea(element, spec) {
  timeSeries(element, { ...spec, stacked: true });
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
    let path = "";
    values.forEach((value, i) => {
      if (value === null) return;
      const alone = (values[i - 1] ?? null) === null && (values[i + 1] ?? null) === null;
      if (alone) canvas.append(svg("circle", { cx: x(i), cy: y(value), r: 1.75, class: `chart-dot of-${key}` }));
      path += `${(values[i - 1] ?? null) === null ? "M" : "L"}${x(i)},${y(value)}`;
    });
    canvas.append(svg("path", { d: path, class: `chart-line of-${key}` }));
  }
}

// How many took how long, over time. spec: {title, times, bounds, counts: one list of classes for each time}
export function heatmap(element, { title, times, bounds, counts, empty }) {
  const used = bounds.concat(Infinity).map((_, place) => place).filter((place) => counts.some((list) => list[place] > 0));
  const low = Math.max(0, Math.min(...used) - 1);
  const high = Math.min(bounds.length, Math.max(...used) + 1);
  const rows = high - low + 1;
  const most = Math.max(0, ...counts.flat());
  const level = (count) => (count ? Math.max(1, Math.ceil(Math.sqrt(count / most) * 6)) : 0);
  const range = (place) => (place === 0 ? `up to ${duration(bounds[0])}`
    : place === bounds.length ? `over ${duration(bounds[place - 1])}` : `${duration(bounds[place - 1])} to ${duration(bounds[place])}`);
  let geometry = null;
  const draw = (canvas, width, height) => {
    const box = area(width, height);
    const wide = (box.right - box.left) / times.length;
    const tall = (box.bottom - box.top) / rows;
    geometry = { box, tall };
    const every = Math.max(1, Math.ceil(rows / 6));
    for (let place = low; place < high; place += every) {
      const y = box.bottom - (place - low + 1) * tall;
      canvas.append(
        svg("line", { x1: box.left, x2: box.right, y1: y, y2: y, class: "chart-grid" }),
        svg("text", { x: box.left - 6, y: y + 4, "text-anchor": "end", class: "chart-label" }, duration(bounds[place])),
      );
    }
    counts.forEach((list, i) => {
      for (let place = low; place <= high; place += 1) {
        if (!list[place]) continue;
        canvas.append(svg("rect", {
          x: box.left + i * wide, y: box.bottom - (place - low + 1) * tall,
          width: Math.max(1, wide - (wide > 4 ? 1 : 0)), height: Math.max(1, tall - (tall > 4 ? 1 : 0)),
          class: `chart-cell heat-${level(list[place])}`,
        }));
      }
    });
    const step = times.length > 1 ? times[1] - times[0] : 60000;
    drawTimes(canvas, box, times, (at) => box.left + ((at - times[0]) / step) * wide);
    return { ...box, x: (i) => box.left + (i + 0.5) * wide };
  };
  const busiest = (i) => counts[i].indexOf(Math.max(...counts[i]));
  frameOf(element).show({
    title, draw, count: times.length, cells: true, empty: used.length === 0 ? empty : "",
    legend: () => [html("li", {}, "fewer ", ...scaleOf(), " more, at most ", html("b", {}, number(most)))],
    lines: (i, y) => {
      const pointed = y === undefined ? busiest(i) : low + Math.floor((geometry.box.bottom - y) / geometry.tall);
      const place = Math.max(low, Math.min(high, pointed));
      const total = counts[i].reduce((sum, count) => sum + count, 0);
      return [moment(times[i], true), [range(place), `${number(counts[i][place])} of ${number(total)}`]];
    },
    table: () => ({
      head: ["Time", "Jobs", "Most of them took"],
      rows: times.map((at, i) => {
        const total = counts[i].reduce((sum, count) => sum + count, 0);
        return [moment(at, true), number(total), total ? range(busiest(i)) : "none"];
      }),
    }),
  });
}

function scaleOf() {
  return [svg("svg", { width: 72, height: 12, class: "chart-swatch", "aria-hidden": "true" },
    ...[1, 2, 3, 4, 5, 6].map((n) => svg("rect", { x: (n - 1) * 12, width: 11, height: 12, class: `chart-cell heat-${n}` })))];
}

// A line of the size of a word.
export function sparkline(element, values, { label = "" } = {}) {
  const [width, height, pad] = [96, 22, 2];
  const most = Math.max(1, ...values);
  const x = (i) => pad + (i / Math.max(1, values.length - 1)) * (width - 2 * pad);
  const y = (value) => height - pad - (value / most) * (height - 2 * pad);
  const points = values.map((value, i) => `${x(i)},${y(value)}`).join(" ");
  const last = values.length - 1;
  const words = values.some((value) => value > 0)
    ? `${label ? `${label}: ` : ""}latest ${number(values[last])}, at most ${number(Math.max(...values))}` : `${label ? `${label}: ` : ""}nothing`;
  element.replaceChildren(svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words, class: "chart-spark" },
    svg("title", {}, words), svg("polyline", { points, class: "chart-line of-spark" }),
    values.length ? svg("circle", { cx: x(last), cy: y(values[last]), r: 1.75, class: "chart-dot of-spark" }) : null));
}

// What each kind makes of the answer

const rate = (value) => `${number(value)}/s`;
const times = (answer) => answer.buckets.map(({ at }) => Date.parse(at));
const percentiles = (answer, what) => ["p50", "p95", "p99"].map((key) => ({ name: key, key, values: answer.buckets.map((bucket) => bucket[what][key]) }));

const KINDS = {
  throughput: (element, answer) => {
    const { buckets, step } = answer;
    const values = (name) => buckets.map((bucket) => bucket[name] / step);
    const share = (i) => {
      const ended = buckets[i].success + buckets[i].failed;
      return ended ? `${number((100 * buckets[i].failed) / ended)} %` : "none";
    };
    stackedArea(element, {
      title: "Attempts that ended, a second", times: times(answer), words: rate,
      series: [{ name: "succeeded", key: "success", values: values("success") }, { name: "failed", key: "failed", values: values("failed") }],
      more: (i) => [["error rate", share(i)], ["died", number(buckets[i].dead)]],
      empty: "No job has ended in this time.",
    });
  },
  wait: (element, answer) => timeSeries(element, {
    title: "How long jobs waited", times: times(answer), series: percentiles(answer, "wait"), words: duration, log: true,
    empty: "No job was claimed in this time.",
  }),
  run: (element, answer) => timeSeries(element, {
    title: "How long jobs ran", times: times(answer), series: percentiles(answer, "run"), words: duration, log: true,
    empty: "No job has run in this time.",
  }),
  "heatmap-wait": (element, answer) => heatmap(element, {
    title: "Jobs by how long they waited", times: times(answer), bounds: answer.bounds, counts: answer.buckets.map(({ waits }) => waits),
    empty: "No job was claimed in this time.",
  }),
  "heatmap-run": (element, answer) => heatmap(element, {
    title: "Jobs by how long they ran", times: times(answer), bounds: answer.bounds, counts: answer.buckets.map(({ runs }) => runs),
    empty: "No job has run in this time.",
  }),
  flow: (element, answer) => {
    const flow = answer.flow ?? [];
    const one = (name, key = name) => ({ name, key, values: flow.map((sample) => sample[key]) });
    stackedArea(element, {
      title: "Jobs by state", times: flow.map(({ at }) => Date.parse(at)), words: number,
      series: [one("finished"), one("running"), one("queued"), one("retry"), one("created")],
      more: (i) => [["arrived", number(flow[i].arrived)], ["dead", number(flow[i].dead)]],
      empty: answer.flow === null ? "Shown for all queues together only." : flow.length ? "There are no jobs." : "The first samples come within a minute.",
    });
  },
};
KINDS.heatmap = KINDS["heatmap-wait"];

// By themselves

const EVERY = 5000;
const answers = new Map();

async function ask(source) {
  const known = answers.get(source);
  if (known && performance.now() - known.at < EVERY) return known.answer;
  const answer = fetch(source, { headers: { accept: "application/json" }, credentials: "same-origin" })
    .then((response) => (response.ok ? response.json() : null)).catch(() => null);
  answers.set(source, { at: performance.now(), answer });
  return answer;
}

async function draw(element) {
  const kind = element.dataset.chart;
  if (kind === "sparkline") {
    const values = (element.dataset.values ?? "").split(",").filter(Boolean).map(Number);
    sparkline(element, values, { label: element.dataset.label });
    return;
  }
  const answer = KINDS[kind] && element.dataset.src ? await ask(element.dataset.src) : null;
  if (answer) KINDS[kind](element, answer);
  else if (!element.classList.contains("chart")) element.textContent = "The figures cannot be had right now.";
}

export function mount(root = document) {
  return Promise.all([...root.querySelectorAll("[data-chart]")].map(draw));
}

document.addEventListener("leasehold:refresh", () => mount());
mount();

// Curves of the metric lines. All panels have the same horizontal axis, cursor and zoom.

const X_AXES = { step: "learner step", wall_s: "hours", tokens_trained_total: "trained tokens" };

class Chart {
  constructor(board, title, note, series) {
    this.board = board;
    this.series = series;
    this.title = title;
    this.legend = el("div", { class: "legend" });
    this.svg = svg("svg", { class: "plot", tabindex: "0", role: "img" });
    this.node = el("figure", { class: "panel" }, el("figcaption", {}, title, note && el("small", {}, note)), this.svg, this.legend);
    this.labels = series.map((one) => {
      const value = el("b", {}, "");
      this.legend.append(el("span", { class: `key ${one.colour} ${one.dash}`, title: one.meaning }, el("i"), one.label, " ", value));
      return value;
    });
    this.svg.addEventListener("pointermove", (event) => board.point(this.valueAt(event.offsetX)));
    this.svg.addEventListener("pointerleave", () => board.point(null));
    this.svg.addEventListener("keydown", (event) => board.key(event));
    this.listenToDrag();
  }

  listenToDrag() {
    let from = null;
    this.svg.addEventListener("pointerdown", (event) => (from = event.offsetX));
    this.svg.addEventListener("pointerup", (event) => {
      if (from !== null && Math.abs(event.offsetX - from) > 8) {
        const ends = [from, event.offsetX].map((x) => this.valueAt(x)).sort((a, b) => a - b);
        this.board.zoom(ends);
      }
      from = null;
    });
    this.svg.addEventListener("dblclick", () => this.board.zoom(null));
  }

  valueAt(pixel) {
    const [low, high] = this.board.range;
    return low + ((pixel - this.left) / (this.width - this.left - 8)) * (high - low);
  }

  draw() {
    const width = (this.width = this.svg.clientWidth || 300);
    const height = 150;
    const [low, high] = this.board.range;
    let [bottom, top] = [Infinity, -Infinity];
    for (const { xs, shown } of this.series) {
      for (let i = 0; i < xs.length; i++) {
        if (xs[i] < low || xs[i] > high || !Number.isFinite(shown[i])) continue;
        if (shown[i] < bottom) bottom = shown[i];
        if (shown[i] > top) top = shown[i];
      }
    }
    if (bottom > top) [bottom, top] = [0, 1];
    if (bottom > 0 && bottom < 0.5 * top) bottom = 0;
    if (bottom === top) [bottom, top] = [bottom - (Math.abs(bottom) * 0.1 || 0.5), top + (Math.abs(top) * 0.1 || 0.5)];
    else top += 0.04 * (top - bottom);
    const yTicks = ticks(bottom, top, 5);
    this.left = 12 + 6.2 * Math.max(...yTicks.map((tick) => number(tick).length));
    const x = (value) => this.left + ((value - low) / (high - low || 1)) * (width - this.left - 8);
    const y = (value) => 6 + (1 - (value - bottom) / (top - bottom)) * (height - 28);
    this.x = x;
    const parts = [];
    for (const tick of yTicks) {
      parts.push(svg("line", { class: "grid", x1: this.left, x2: width - 8, y1: y(tick), y2: y(tick) }));
      parts.push(svg("text", { x: this.left - 5, y: y(tick) + 3.5, "text-anchor": "end" }, number(tick)));
    }
    for (const tick of ticks(low, high, Math.max(2, width / 90))) {
      parts.push(svg("text", { x: x(tick), y: height - 4, "text-anchor": "middle" }, number(tick)));
    }
    for (const one of this.series) parts.push(...drawSeries(one, x, y, low, high, width));
    this.cursor = svg("line", { class: "cursor", y1: 6, y2: height - 22, visibility: "hidden" });
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const last = this.series.map((one) => `${one.label} ${number(lastOf(one.ys))}`);
    this.svg.setAttribute("aria-label", `${this.title}: last values: ${last.join(", ")}`);
    this.svg.replaceChildren(...parts, this.cursor);
    this.point(null);
  }

  // Show the values at a place of the axis, or the last ones.
  point(at) {
    if (!this.cursor) return;
    this.series.forEach((one, i) => {
      const value = at === null ? lastOf(one.ys) : one.ys[nearest(one.xs, at)];
      const by = one.points && (one.by[at === null ? one.ys.length - 1 : nearest(one.xs, at)] ?? "");
      this.labels[i].textContent = number(value) + (by ? ` (v${by})` : "");
    });
    const [low, high] = this.board.range;
    this.cursor.setAttribute("visibility", at === null || at < low || at > high ? "hidden" : "visible");
    if (at !== null) for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, this.x(at));
  }
}

function drawSeries(one, x, y, low, high, width) {
  const parts = [];
  if (one.points) {
    for (let i = 0; i < one.xs.length; i++) {
      if (one.xs[i] >= low && one.xs[i] <= high && Number.isFinite(one.ys[i])) {
        const [from, to] = one.ranges[i].map((end) => x(Math.min(Math.max(end, low), high)));
        if (to > from) parts.push(svg("line", { class: `answered ${one.colour}`, x1: from, x2: to, y1: y(one.ys[i]), y2: y(one.ys[i]) }));
        parts.push(svg("circle", { class: `dot ${one.colour}`, cx: x(one.xs[i]), cy: y(one.ys[i]), r: 3 }));
      }
    }
  }
  if (one.shown !== one.ys) parts.push(svg("path", { class: `line pale ${one.colour}`, d: path(one.xs, one.ys, x, y, low, high, width) }));
  parts.push(svg("path", { class: `line ${one.colour} ${one.dash}`, d: path(one.xs, one.shown, x, y, low, high, width) }));
  return parts;
}

// With more points than pixels, the lowest and highest of each pixel.
function path(xs, ys, x, y, low, high, width) {
  const first = Math.max(0, lower(xs, low) - 1);
  const end = Math.min(xs.length, lower(xs, high) + 1);
  const every = Math.max(1, Math.floor((end - first) / width));
  let d = "";
  let open = false;
  const add = (i) => {
    d += `${open ? "L" : "M"}${x(xs[i]).toFixed(1)} ${y(ys[i]).toFixed(1)}`;
    open = true;
  };
  for (let i = first; i < end; i += every) {
    let [least, most] = [-1, -1];
    for (let j = i; j < Math.min(end, i + every); j++) {
      if (!Number.isFinite(ys[j])) continue;
      if (least < 0 || ys[j] < ys[least]) least = j;
      if (most < 0 || ys[j] > ys[most]) most = j;
    }
    if (least < 0) {
      if (every === 1 && !Number.isFinite(ys[i])) open = false;
      continue;
    }
    add(Math.min(least, most));
    if (least !== most) add(Math.max(least, most));
  }
  return d;
}

function ticks(low, high, count) {
  const step = 10 ** Math.floor(Math.log10((high - low) / count || 1));
  const size = [1, 2, 5, 10].map((f) => f * step).find((s) => (high - low) / s <= count) ?? step;
  const found = [];
  for (let i = Math.ceil(low / size - 1e-9); i <= high / size + 1e-9; i++) found.push(+(i * size).toPrecision(12));
  return found;
}

function lower(xs, value) {
  let [low, high] = [0, xs.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

function nearest(xs, value) {
  const i = lower(xs, value);
  return i > 0 && (i === xs.length || value - xs[i - 1] < xs[i] - value) ? i - 1 : i;
}

function lastOf(ys) {
  for (let i = ys.length - 1; i >= 0; i--) if (Number.isFinite(ys[i])) return ys[i];
  return NaN;
}

// The mean of the last `window` values, without missing ones.
function smooth(ys, window) {
  if (window < 2) return ys;
  const out = new Float64Array(ys.length);
  let [sum, count] = [0, 0];
  for (let i = 0; i < ys.length; i++) {
    if (Number.isFinite(ys[i])) [sum, count] = [sum + ys[i], count + 1];
    if (i >= window && Number.isFinite(ys[i - window])) [sum, count] = [sum - ys[i - window], count - 1];
    out[i] = count ? sum / count : NaN;
  }
  return out;
}

class Board {
  constructor(host, runs) {
    this.host = host;
    this.runs = runs;
    this.axis = "step";
    this.window = Math.max(...runs.map((run) => (run.lines.step ?? []).length)) > 150 ? 5 : 1;
    this.limits = null;
    this.body = el("div");
    host.replaceChildren(this.controls(), this.body);
    // Panels are drawn when they come near the screen.
    this.watcher = new IntersectionObserver((entries) => entries.forEach((e) => e.isIntersecting && this.panels.get(e.target)?.draw()), {
      rootMargin: "300px",
    });
    let width = 0;
    new ResizeObserver(() => {
      if (host.clientWidth && host.clientWidth !== width) this.redraw();
      width = host.clientWidth;
    }).observe(host);
    this.build();
  }

  controls() {
    const axis = el("select", { id: "axis", onchange: () => this.set({ axis: axis.value }) });
    for (const [key, label] of Object.entries(X_AXES)) axis.append(el("option", { value: key }, label));
    const window = el("select", { id: "smooth", onchange: () => this.set({ window: +window.value }) });
    for (const size of [1, 5, 20, 100]) window.append(el("option", { value: size, selected: size === this.window }, size === 1 ? "off" : `${size} steps`));
    this.reset = el("button", { hidden: true, onclick: () => this.zoom(null) }, "Whole run");
    return el("div", { class: "controls" }, el("label", {}, "Axis ", axis), el("label", {}, "Smoothing ", window), this.reset,
      el("small", {}, "drag to zoom, double-click for all"));
  }

  set(change) {
    Object.assign(this, change, "axis" in change ? { limits: null } : {});
    this.build();
  }

  zoom(limits) {
    this.limits = limits;
    this.reset.hidden = !limits;
    this.setRange();
    this.redraw();
  }

  setRange() {
    let [low, high] = [0, -Infinity];
    for (const run of this.runs) for (const value of this.axisOf(run)) [low, high] = [Math.min(low, value), Math.max(high, value)];
    this.range = this.limits ?? (low <= high ? [low, high === low ? low + 1 : high] : [0, 1]);
  }

  axisOf(run) {
    const values = run.lines[this.axis] ?? [];
    return this.axis === "wall_s" ? values.map((value) => value / 3600) : values;
  }

  point(at) {
    cancelAnimationFrame(this.frame);
    this.at = at;
    this.frame = requestAnimationFrame(() => this.panels.forEach((chart) => chart.point(at)));
  }

  key(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1 };
    if (event.key === "Escape") this.zoom(null);
    if (!(event.key in moves)) return;
    event.preventDefault();
    const xs = this.axisOf(this.runs[0]);
    const at = this.at ?? null;
    const i = at === null ? (event.key === "ArrowLeft" ? xs.length - 1 : 0) : nearest(xs, at) + moves[event.key];
    this.point(xs[Math.max(0, Math.min(xs.length - 1, i))]);
  }

  build() {
    this.setRange();
    this.panels = new Map();
    this.watcher.disconnect();
    this.body.replaceChildren(...[...this.sections()].flatMap(([title, panels]) => {
      const made = [...panels].map(([name, [note, labels]]) => this.panel(name, note, labels)).filter(Boolean);
      return made.length ? [el("h2", {}, title), el("div", { class: "grid" }, made)] : [];
    }));
  }

  // The panels of all runs, by section and title.
  sections() {
    const found = new Map();
    for (const [section, panels] of this.runs.flatMap((run) => run.sections)) {
      const of = found.get(section) ?? new Map();
      for (const [title, note, labels] of panels) of.set(title, [note, { ...of.get(title)?.[1], ...labels }]);
      found.set(section, of);
    }
    return found;
  }

  panel(title, note, labels) {
    const fields = Object.entries(labels);
    const series = this.runs.flatMap((run, r) => fields.map(([field, label], f) => this.seriesOf(run, r, field, label, f, title)));
    return this.add(title, note, series.filter(Boolean));
  }

  seriesOf(run, r, field, label, f, title) {
    const several = this.runs.length > 1;
    const style = { colour: several ? runClass(r) : runClass(f), dash: several ? `d${f % 4}` : "d0", label: several ? [run.name, label].filter(Boolean).join(": ") : label || title,
      meaning: run.meanings[field] ? `${field}: ${run.meanings[field]}` : field };
    const points = run.evaluations[field] ?? [];
    if (field.startsWith("eval_")) return points.length ? { ...style, ...this.evaluated(run, points) } : null;
    const ys = (run.lines[field] ?? []).map((value) => (typeof value === "number" ? value : NaN));
    return ys.some(Number.isFinite) ? { ...style, xs: this.axisOf(run), ys, shown: smooth(ys, this.window) } : null;
  }

  // Each point with the version that was measured, its value, the oldest and newest version that answered, and their text.
  evaluated(run, points) {
    const axis = this.axisOf(run);
    const steps = run.lines.step;
    const place = (version) => (this.axis === "step" ? version : version < steps[0] ? 0 : axis[Math.min(lower(steps, version), axis.length - 1)]);
    const ys = points.map((p) => p[1]);
    return { xs: points.map((p) => place(p[0])), ys, shown: ys, points: true, ranges: points.map((p) => p.slice(2, 4).map(place)), by: points.map((p) => p[4]) };
  }

  add(title, note, series) {
    if (!series.length) return null;
    const chart = new Chart(this, title, note, series);
    this.panels.set(chart.node, chart);
    this.watcher.observe(chart.node);
    return chart.node;
  }

  redraw() {
    this.watcher.disconnect();
    for (const node of this.panels.keys()) this.watcher.observe(node);
  }
}

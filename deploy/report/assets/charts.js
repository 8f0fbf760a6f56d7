// Curves of the metric lines. All panels have the same horizontal axis, cursor and zoom.

// Panels by section: title, fields, what good looks like. `*` matches any text.
const SECTIONS = [
  ["Learning", [
    ["Reward before filtering", ["reward_mean"], "should rise, then level off"],
    ["Held-out accuracy", ["eval_*_accuracy"], "at the version it measured; should follow the reward"],
    ["Solved share", ["solve_rate_mean"], "0 or 1 leaves nothing to learn from"],
    ["Reward of the batch", ["batch_reward_mean"], "near the middle: groups with a gradient"],
    ["Spread of rewards", ["reward_std"], "0 means that all answers are alike"],
    ["Loss", ["loss"], "has no target value; look for jumps"],
    ["Entropy", ["entropy_mean"], "should fall slowly; a collapse ends exploration"],
    ["Gradient norm", ["grad_norm"], "spikes come before trouble"],
    ["Learning rate", ["lr"], ""],
    ["KL to the reference", ["kl_ref_mean"], ""],
  ]],
  ["Length", [
    ["Completion tokens", ["completion_tokens_mean", "completion_tokens_max"], "mean and longest"],
    ["Truncated share", ["truncated_fraction"], "over 25%: raise sampling.max_tokens"],
  ]],
  ["Off policy", [
    ["Lag", ["lag_mean", "lag_max"], "versions between a token and the step that trains it"],
    ["Effective sample size", ["ess*", "effective_sample_size*", "importance_ess*"], "of tokens and of answers; below 0.5 few answers teach"],
    ["Engine against learner", ["logprob_diff_mean", "logprob_diff_mean_fresh"], "difference of log-probabilities, near 0"],
    ["KL engine against learner", ["kl_engine_learner", "kl_engine_learner_fresh"], "fresh: tokens of lag 0, near 0"],
    ["Clipped ratios", ["clip_fraction_low", "clip_fraction_high"], ""],
    ["Truncated importance weights", ["tis_clip_fraction", "tis_clip_fraction_answers"], "of tokens, and of the tokens of each answer"],
    ["KL of an answer", ["kl_engine_learner_answers"], "nats; with 0.3 and more, token weights learn slower"],
    ["Outliers", ["outlier_tokens_mean"], "stale tokens of an answer beyond the threshold"],
    ["Threshold of outliers", ["outlier_threshold"], "nats; grows with noise and with the length of answers"],
  ]],
  ["Throughput", [
    ["Tokens a second", ["actor_tokens_per_s", "useful_tokens_per_s"], "generated, and trained"],
    ["Learner's time", ["learner_step_s", "learner_wait_s"], "seconds a step: training, and waiting for a batch"],
    ["Phases of the step", ["learner_forward_backward_s", "learner_optimizer_s", "learner_snapshot_s", "learner_publish_wait_s"], "seconds"],
    ["Draws for each trained group", ["draws_per_trained_group"], "1: every group has a gradient"],
    ["Weight updates", ["weight_publish_s", "weight_stall_s_mean", "weight_stall_s_max"], "seconds to publish; stall of an engine"],
    ["Groups in flight", ["groups_in_flight"], ""],
    ["Tokens of the batch", ["batch_tokens"], ""],
  ]],
  ["Verifiers, sources, functions", [
    ["Reward by verifier", ["reward_*_mean"], ""],
    ["Solved share by verifier", ["verifier_*_solve_rate_mean"], ""],
    ["Length by verifier", ["verifier_*_completion_tokens_mean"], ""],
    ["Truncated share by verifier", ["verifier_*_truncated_fraction"], ""],
    ["Groups by verifier", ["verifier_*_groups", "verifier_*_failed"], ""],
    ["Reward by data source", ["source_*_reward_mean"], ""],
    ["Solved share by data source", ["source_*_solve_rate_mean"], ""],
    ["Length by data source", ["source_*_completion_tokens_mean"], ""],
    ["Truncated share by data source", ["source_*_truncated_fraction"], ""],
    ["Groups by data source", ["source_*_groups", "source_*_failed"], ""],
    ["Failures by cause", ["failures_*"], ""],
    ["Logged by functions", ["logged_*_mean"], ""],
  ]],
  ["Evaluation", [
    ["Held-out reward", ["eval_*_reward_mean"], ""],
    ["pass@k", ["eval_*_pass_at_*"], ""],
    ["Held-out length", ["eval_*_completion_tokens_mean"], ""],
    ["Held-out truncated", ["eval_*_truncated_fraction"], ""],
  ]],
];
const HIDDEN = /^(step|incarnation|version|wall_s|batch_groups)$|_total$|^eval_.*_(version|version_oldest|version_newest|prompts|failed|tokens)$|^reward_.*_std$/;
const X_AXES = { step: "learner step", wall_s: "hours", tokens_trained_total: "trained tokens" };

const matches = (pattern, name) =>
  new RegExp(`^${pattern.split("*").map((s) => s.replace(/[.+?^${}()|[\]\\]/g, "\\$&")).join("(.+)")}$`).test(name);

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
  for (let tick = Math.ceil(low / size - 1e-9) * size; tick <= high + size * 1e-9; tick += size) found.push(+tick.toPrecision(12));
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
    const names = [...new Set(this.runs.flatMap((run) => Object.keys(run.lines)))];
    const used = new Set();
    const sections = SECTIONS.map(([title, panels]) => [title, panels.map(([name, patterns, note]) => {
      const fields = patterns.flatMap((p) => names.filter((n) => !used.has(n) && matches(p, n) && !HIDDEN.test(n)));
      fields.forEach((field) => used.add(field));
      return [name, note, fields];
    })]);
    const others = names.filter((n) => !used.has(n) && !HIDDEN.test(n)).sort();
    sections.push(["Other fields", others.map((name) => [name, "", [name]])]);
    this.body.replaceChildren(
      ...sections.flatMap(([title, panels]) => {
        const made = panels.map(([name, note, fields]) => this.panel(name, note, fields)).filter(Boolean);
        if (title.startsWith("Verifiers") && !names.some((name) => matches("source_*_reward_mean", name))) made.push(...this.sourcePanels());
        return made.length ? [el("h2", {}, title), el("div", { class: "grid" }, made)] : [];
      }),
    );
  }

  panel(title, note, fields) {
    const series = this.runs.flatMap((run, r) => fields.map((field, f) => this.seriesOf(run, r, field, f, fields.length)));
    return this.add(title, note, series.filter(Boolean));
  }

  seriesOf(run, r, field, f, numFields) {
    const ys = (run.lines[field] ?? []).map((value) => (typeof value === "number" ? value : NaN));
    if (!ys.some(Number.isFinite)) return null;
    const several = this.runs.length > 1;
    const label = [several && run.name, (!several || numFields > 1) && plain(field)].filter(Boolean).join(": ");
    const style = { colour: several ? runClass(r) : runClass(f), dash: several ? `d${f % 4}` : "d0", label,
      meaning: run.meanings[field] ? `${field}: ${run.meanings[field]}` : field };
    if (field.startsWith("eval_")) return { ...style, ...this.evaluated(run, field, ys) };
    return { ...style, xs: this.axisOf(run), ys, shown: smooth(ys, this.window) };
  }

  // An evaluation belongs to the version that was asked, not to the line that it arrived with. Its bar spans the versions
  // that answered.
  evaluated(run, field, ys) {
    let set = field;
    while (set.startsWith("eval_") && !run.lines[`${set}_version`]) set = set.slice(0, set.lastIndexOf("_"));
    const axis = this.axisOf(run);
    const steps = run.lines.step;
    const points = [];
    const place = (version, i) => (typeof version !== "number" ? axis[i] : this.axis === "step" ? version
      : version < steps[0] ? 0 : axis[lower(steps, version)]) ?? axis[i];
    ys.forEach((y, i) => {
      if (!Number.isFinite(y)) return;
      const version = run.lines[`${set}_version`]?.[i];
      const [oldest, newest] = answeredBy(run, set, i);
      points.push([place(version, i), y, [place(oldest ?? version, i), place(newest ?? version, i)], versionsText(oldest, newest)]);
    });
    points.sort((a, b) => a[0] - b[0]);
    const values = points.map((p) => p[1]);
    return { xs: points.map((p) => p[0]), ys: values, shown: values, points: true, ranges: points.map((p) => p[2]), by: points.map((p) => p[3]) };
  }

  // Reward and solved share by data source, from the recorded rollouts.
  sourcePanels() {
    const tally = { count: 1, rewards: 2, reward: 3, solved: 4, tokens: 5 };
    return [["Reward by data source", tally.reward, tally.rewards], ["Solved share by data source", tally.solved, tally.rewards],
      ["Length by data source", tally.tokens, tally.count]].map(([title, above, below]) => {
      const series = this.runs.flatMap((run, r) => run.sources.slice(0, 8).map((one, s) => {
        const ys = one.tallies.map((t) => (t[below] ? t[above] / t[below] : NaN));
        const steps = run.lines.step ?? [];
        const axis = this.axisOf(run);
        const xs = one.steps.map((step) => (this.axis === "step" ? step : axis[Math.min(lower(steps, step), axis.length - 1)]));
        const several = this.runs.length > 1;
        return { label: several ? `${run.name}: ${short(one.source)}` : short(one.source), colour: runClass(several ? r : s),
          dash: `d${several ? s % 4 : 0}`, xs, ys, shown: smooth(ys, this.window) };
      }));
      return this.runs.some((run) => run.sources.length > 1) ? this.add(title, "", series) : null;
    }).filter(Boolean);
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

// The oldest and the newest version that answered an evaluation.
const answeredBy = (run, set, i) => ["oldest", "newest"].map((end) => run.lines[`${set}_version_${end}`]?.[i]);

const versionsText = (oldest, newest) =>
  typeof newest !== "number" ? "" : typeof oldest !== "number" || oldest === newest ? `${newest}` : `${oldest}-${newest}`;

// A field as a label, without the words that its panel already shows.
const plain = (field) => field.replace(/^eval_/, "").replace(/_(mean|fraction|accuracy)$/, "").replaceAll("_", " ");

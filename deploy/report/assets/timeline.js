// The timeline: the learner's steps, versions, actors, processes, faults. One canvas for each run.

const MOST_ACTORS = 64;
const LANE = 20;
const VERSIONS = 90;

class Timeline {
  constructor(run, index) {
    this.run = run;
    this.index = index;
    this.canvas = el("canvas", { tabIndex: 0, role: "img", class: "lanes" });
    this.tableHost = el("div");
    this.findTimes();
    this.faults = this.findFaults();
    const reset = el("button", { onclick: () => this.zoom(null) }, "Whole run");
    this.node = el("section", { class: "timeline" },
      el("h2", {}, run.name),
      this.span[1] > this.span[0]
        ? [el("div", { class: "controls" }, reset, el("small", {}, "drag to zoom; arrows, + and − on the keyboard; colours are versions")), this.canvas, this.key()]
        : el("p", { class: "note" }, "No times are recorded for this run."),
      this.messages());
    this.canvas.setAttribute("aria-label", `${run.name}: ${this.lanes.length} lanes, ${this.faults.length} faults`);
    this.listen();
  }

  key() {
    const one = (kind, label) => el("span", { class: `key ${kind}` }, el("i"), label);
    return el("div", { class: "legend" }, el("span", {}, "line: version of the learner; dots: version a group began with"), one("idle", "waits for a batch"),
      one("bad", "fault, or a step that a restart undid"), one("good", "works (pale: starts, or tells no more)"), el("span", {}, "dotted: checkpoint"));
  }

  findTimes() {
    const { steps, lost, starts, processes, checkpoints } = this.run.timeline;
    this.groups = this.actorGroups();
    this.lanes = [["learner: steps", "learner"], ...[...this.groups.keys()].map((name) => [name, "actor"]),
      ...Object.keys(processes).sort().map((name) => [name, "process"])];
    const times = [...steps.flatMap(([, at, busy, wait]) => [at, at - busy - wait]), ...starts.map((s) => s.at), ...lost.map(([, at]) => at)];
    for (const spans of Object.values(processes)) for (const [, from, to] of spans) times.push(from, to ?? from);
    for (const list of this.groups.values()) for (const group of list) times.push(group.from, group.to);
    this.marks = checkpoints.map(([step, at]) => ({ at, label: `checkpoint of step ${step}` }));
    let [low, high] = [Infinity, -Infinity];
    for (const time of times) [low, high] = [Math.min(low, time), Math.max(high, time)];
    this.span = low < high ? [low, high + 0.01 * (high - low)] : [0, 0];
    this.range = this.span;
    this.published = this.run.timeline.versions.map(([version, at]) => [at, version]);
  }

  // Groups by actor, each with its time and the version it began with.
  actorGroups() {
    const { columns: c, names } = this.index;
    const byActor = new Map();
    let first = 0;
    for (let g = 0; g < c.g_draw.length; g++) {
      const count = c.g_count[g];
      if (count && c.g_started[g] > 0) {
        const name = names.actor[c.g_actor[g]];
        if (!byActor.has(name)) byActor.set(name, []);
        let [oldest, newest] = [c.c_oldest[first], 0];
        for (let i = first; i < first + count; i++) [oldest, newest] = [Math.min(oldest, c.c_oldest[i]), Math.max(newest, c.c_newest[i])];
        byActor.get(name).push({ from: c.g_started[g], to: c.g_started[g] + c.g_seconds[g], oldest, newest, draw: c.g_draw[g] });
      }
      first += count;
    }
    const sorted = [...byActor].sort((a, b) => a[0].localeCompare(b[0], "en", { numeric: true }));
    this.hiddenActors = Math.max(0, sorted.length - MOST_ACTORS);
    for (const [, list] of sorted) list.sort((a, b) => a.from - b.from);
    return new Map(sorted.slice(0, MOST_ACTORS));
  }

  findFaults() {
    const { faults, starts } = this.run.timeline;
    const again = starts.slice(1).map((s) => ({ at: s.at, process: "learner", state: "started", cause: `incarnation ${s.incarnation} begins after step ${s.step}` }));
    return [...faults, ...again].sort((a, b) => a.at - b.at);
  }

  messages() {
    const faults = this.faults.map((fault) => [
      el("button", { class: "link", onclick: () => this.zoomTo(fault.at) }, clock(fault.at, true)), fault.process, fault.state, fault.cause]);
    const said = this.run.timeline.messages.map(([at, level, text]) => [clock(at, true), level, text]);
    return el("div", {},
      el("h3", {}, `Faults and restarts (${faults.length})`),
      faults.length ? table(["time", "process", "state", "cause"], faults, { numeric: 9 }) : el("p", { class: "note" }, "None is recorded."),
      this.hiddenActors > 0 && el("p", { class: "note" }, `${this.hiddenActors} more actors are not drawn.`),
      said.length > 0 && el("details", {}, el("summary", {}, `What the launcher said (${said.length} lines)`), table(["time", "level", "message"], said, { numeric: 9 })));
  }

  listen() {
    let from = null;
    const at = (x) => this.range[0] + ((x - this.left) / (this.width - this.left)) * (this.range[1] - this.range[0]);
    this.canvas.addEventListener("pointerdown", (event) => (from = event.offsetX));
    this.canvas.addEventListener("pointerup", (event) => {
      if (from !== null && Math.abs(event.offsetX - from) > 8) this.zoom([at(from), at(event.offsetX)].sort((a, b) => a - b));
      from = null;
    });
    this.canvas.addEventListener("dblclick", () => this.zoom(null));
    this.canvas.addEventListener("pointermove", (event) => showTip(event, this.describe(at(event.offsetX), event.offsetY)));
    this.canvas.addEventListener("pointerleave", hideTip);
    this.canvas.addEventListener("keydown", (event) => {
      const size = this.range[1] - this.range[0];
      const moves = { ArrowLeft: [-0.2, -0.2], ArrowRight: [0.2, 0.2], "+": [0.25, -0.25], "-": [-0.5, 0.5], Escape: [-1e9, 1e9] };
      const move = moves[event.key];
      if (!move) return;
      event.preventDefault();
      this.zoom([this.range[0] + move[0] * size, this.range[1] + move[1] * size]);
    });
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  zoom(range) {
    this.range = range ? [Math.max(this.span[0], range[0]), Math.min(this.span[1], range[1])] : this.span;
    if (!(this.range[1] > this.range[0])) this.range = this.span;
    this.draw();
  }

  zoomTo(at) {
    const around = Math.max(5, (this.span[1] - this.span[0]) / 20);
    this.zoom([at - around, at + around]);
    this.canvas.scrollIntoView({ block: "center" });
    this.canvas.focus();
  }

  describe(at, y) {
    const lines = [clock(at, true)];
    const lane = this.lanes[Math.floor((y - VERSIONS) / LANE)];
    if (y < VERSIONS) lines.push(`learner: version ${this.versionAt(at)}`);
    else if (lane?.[1] === "learner") lines.push(...this.learnerAt(at));
    else if (lane?.[1] === "actor") {
      const running = this.groups.get(lane[0]).filter((group) => group.from <= at && at <= group.to);
      lines.push(`${lane[0]}: ${running.length} groups in progress`);
      if (running.length) lines.push(`begun with version ${Math.min(...running.map((g) => g.oldest))} to ${Math.max(...running.map((g) => g.oldest))}`);
    } else if (lane) {
      const found = this.run.timeline.processes[lane[0]].find(([, from, to]) => from <= at && (to === null || at <= to));
      lines.push(`${lane[0]}: ${found ? found[0] : "not running"}`);
    }
    const near = (this.range[1] - this.range[0]) / 100;
    for (const fault of this.faults) if (Math.abs(fault.at - at) < near) lines.push(`${fault.process}: ${fault.cause}`);
    for (const mark of this.marks) if (Math.abs(mark.at - at) < near) lines.push(mark.label);
    return lines;
  }

  versionAt(at) {
    let version = 0;
    for (const [time, step] of this.published) if (time <= at) version = step;
    return version;
  }

  learnerAt(at) {
    for (const [step, end, busy, wait] of this.run.timeline.steps) {
      if (at > end - busy && at <= end) return [`step ${step}: training, ${duration(busy)}`];
      if (at > end - busy - wait && at <= end - busy) return [`step ${step}: waits for its batch, ${duration(wait)}`];
    }
    const lost = this.run.timeline.lost.find(([, end, begin]) => begin <= at && at <= end);
    return [lost ? `step ${lost[0]}: trained, and again after a restart` : "learner: no step"];
  }

  draw() {
    const width = (this.width = this.canvas.clientWidth);
    if (!width) return;
    const height = VERSIONS + LANE * this.lanes.length + 22;
    const scale = devicePixelRatio || 1;
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    this.canvas.style.height = `${height}px`;
    this.left = Math.min(120, width / 4);
    const paint = this.canvas.getContext("2d");
    paint.setTransform(scale, 0, 0, scale, 0, 0);
    paint.font = "11px system-ui, sans-serif";
    this.paint = paint;
    this.palette = colours("v", 8);
    this.ink = { text: colour("muted"), line: colour("line"), good: colour("good"), idle: colour("idle"), bad: colour("bad"), mark: colour("accent") };
    this.drawAxis(height);
    this.drawVersions();
    this.lanes.forEach(([name, kind], i) => this.drawLane(name, kind, VERSIONS + LANE * i));
    this.drawMarks(height);
  }

  x(at) {
    return this.left + ((at - this.range[0]) / (this.range[1] - this.range[0])) * (this.width - this.left);
  }

  drawAxis(height) {
    const { paint } = this;
    paint.fillStyle = this.ink.text;
    paint.strokeStyle = this.ink.line;
    paint.textAlign = "center";
    const seconds = this.range[1] - this.range[0];
    const count = Math.max(2, Math.floor((this.width - this.left) / 90));
    const size = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 604800].find((s) => seconds / s <= count) ?? seconds / count;
    for (let at = Math.ceil(this.range[0] / size) * size; at < this.range[1]; at += size) {
      const x = this.x(at);
      paint.beginPath();
      paint.moveTo(x, 0);
      paint.lineTo(x, height - 18);
      paint.stroke();
      if (x > this.left + 25 && x < this.width - 25) paint.fillText(size >= 86400 ? clock(at, true).slice(5, 10) : clock(at).slice(0, size >= 60 ? 5 : 8), x, height - 5);
    }
  }

  // The version that the learner has published, and the version each actor began its groups with.
  drawVersions() {
    const { paint } = this;
    const isSeen = (at) => at >= this.range[0] && at <= this.range[1];
    const seen = this.published.filter(([at]) => isSeen(at)).map(([, version]) => version);
    if (this.published.length) seen.push(this.versionAt(this.range[0]));
    for (const list of this.groups.values()) for (const group of list) if (isSeen(group.from)) seen.push(group.oldest);
    const [bottom, top] = [seen.reduce((a, b) => Math.min(a, b), Infinity), seen.reduce((a, b) => Math.max(a, b), 1)];
    if (bottom > top) return;
    const y = (version) => 8 + (1 - (version - bottom) / (top - bottom || 1)) * (VERSIONS - 20);
    this.clip(0, VERSIONS, () => {
      for (const list of this.groups.values()) {
        for (const group of list) {
          paint.fillStyle = this.palette[((group.oldest % 8) + 8) % 8];
          paint.fillRect(this.x(group.from) - 1, y(group.oldest) - 1.5, 3, 3);
        }
      }
      paint.strokeStyle = this.ink.mark;
      paint.beginPath();
      if (!this.published.length) return;
      let version = this.versionAt(this.range[0]);
      paint.moveTo(this.left, y(version));
      for (const [at, step] of this.published) {
        if (at < this.range[0] || at > this.range[1]) continue;
        paint.lineTo(this.x(at), y(version));
        paint.lineTo(this.x(at), y((version = step)));
      }
      paint.lineTo(this.width, y(version));
      paint.stroke();
    });
    this.label("versions", 4, VERSIONS - 12);
    paint.textAlign = "right";
    paint.fillStyle = this.ink.text;
    for (const version of [bottom, top]) paint.fillText(String(version), this.left - 6, y(version) + 4);
  }

  drawLane(name, kind, top) {
    this.label(kind === "actor" ? `${name}: groups` : name, top, LANE);
    this.clip(top, LANE, () => {
      if (kind === "learner") this.drawLearner(top);
      else if (kind === "actor") this.drawActor(this.groups.get(name), top);
      else this.drawProcess(this.run.timeline.processes[name], top);
    });
  }

  drawLearner(top) {
    for (const [step, end, busy, wait] of this.run.timeline.steps) {
      this.block(end - busy - wait, end - busy, top, this.ink.idle);
      this.block(end - busy, end, top, this.palette[step % 8]);
    }
    this.paint.globalAlpha = 0.45;
    for (const [, end, begin] of this.run.timeline.lost) this.block(begin, end, top, this.ink.bad);
    this.paint.globalAlpha = 1;
  }

  // The height is the number of groups in progress; the colour is the version of the newest of them.
  drawActor(groups, top) {
    const pixels = Math.max(1, Math.floor(this.width - this.left));
    const [counts, versions] = [new Int32Array(pixels + 1), new Int32Array(pixels).fill(-1)];
    const clamp = (x) => Math.max(0, Math.min(pixels - 1, Math.floor(x - this.left)));
    let most = 1;
    for (const group of groups) {
      if (group.to < this.range[0] || group.from > this.range[1]) continue;
      const [from, to] = [clamp(this.x(group.from)), clamp(this.x(group.to))];
      counts[from] += 1;
      counts[to + 1] -= 1;
      for (let i = from; i <= to; i++) versions[i] = Math.max(versions[i], group.oldest);
    }
    for (let i = 0, sum = 0; i < pixels; i++) most = Math.max(most, (sum += counts[i]));
    for (let i = 0, sum = 0; i < pixels; i++) {
      sum += counts[i];
      if (!sum) continue;
      const size = 3 + ((LANE - 7) * sum) / most;
      this.paint.fillStyle = this.palette[((versions[i] % 8) + 8) % 8];
      this.paint.fillRect(this.left + i, top + LANE - 2 - size, 1, size);
    }
  }

  drawProcess(spans, top) {
    const kinds = { working: this.ink.good, started: this.ink.good, leaving: this.ink.idle, waiting: this.ink.bad, quarantined: this.ink.bad, restarting: this.ink.bad };
    for (const [state, from, to] of spans) {
      this.paint.globalAlpha = state === "started" ? 0.55 : 1;
      this.block(from, to ?? this.span[1], top, kinds[state] ?? this.ink.idle);
      this.paint.globalAlpha = 1;
    }
  }

  block(from, to, top, fill) {
    if (to < this.range[0] || from > this.range[1] || !(to > from)) return;
    this.paint.fillStyle = fill;
    const x = this.x(from);
    this.paint.fillRect(x, top + 4, Math.max(1, this.x(to) - x - 0.5), LANE - 6);
  }

  drawMarks(height) {
    const line = (at, style, size) => {
      if (at < this.range[0] || at > this.range[1]) return;
      this.paint.strokeStyle = style;
      this.paint.lineWidth = size;
      this.paint.beginPath();
      this.paint.moveTo(this.x(at), 0);
      this.paint.lineTo(this.x(at), height - 18);
      this.paint.stroke();
      this.paint.lineWidth = 1;
    };
    this.paint.setLineDash([2, 3]);
    for (const mark of this.marks) line(mark.at, this.ink.text, 1);
    this.paint.setLineDash([]);
    for (const fault of this.faults) line(fault.at, this.ink.bad, 2);
  }

  label(text, top, height) {
    this.paint.fillStyle = this.ink.text;
    this.paint.textAlign = "left";
    this.paint.fillText(text, 2, top + height / 2 + 4, this.left - 22);
  }

  clip(top, height, act) {
    this.paint.save();
    this.paint.beginPath();
    this.paint.rect(this.left, top, this.width - this.left, height);
    this.paint.clip();
    act();
    this.paint.restore();
  }
}

function showTimeline(host, runs) {
  const made = runs.map((run) => new Timeline(run, run.index));
  host.replaceChildren(...made.map((one) => one.node));
  return () => made.forEach((one) => one.draw());
}

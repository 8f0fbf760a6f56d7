// The rollout browser: filters, search, a list of groups of any length, and one group with its completions side by side.

const ROW = 46;
const AHEAD = 8;
const SORTS = {
  step: ["step", (s, g) => s.g_step[g]],
  reward: ["mean reward", (s, g) => (Number.isNaN(s.g_reward[g]) ? Infinity : s.g_reward[g])],
  spread: ["spread of rewards", (s, g) => -s.g_spread[g]],
  longest: ["longest first", (s, g) => -s.g_longest[g]],
  seconds: ["slowest first", (s, g) => -s.g_seconds[g]],
  attempt: ["most attempts first", (s, g) => -s.g_attempt[g]],
};
const FLAGS = { solved: 1, truncated: 2, "verifier error": 4 };
const outcomeLabel = (name) => name.replace("_", " ");

// Which groups and completions are shown. An empty set of a facet lets all through.
class Filter {
  constructor() {
    this.clear();
  }

  clear() {
    this.run = new Set();
    this.outcome = new Set();
    this.source = new Set();
    this.verifier = new Set();
    this.cause = new Set();
    this.flags = 0;
    this.not = 0;
    this.step = [-Infinity, Infinity];
    this.reward = [-Infinity, Infinity];
    this.length = [-Infinity, Infinity];
    this.query = "";
  }

  get needsCompletion() {
    return this.flags || this.not || [...this.reward, ...this.length].some(Number.isFinite);
  }

  completion(s, c) {
    const flags = s.c_flags[c];
    if ((flags & this.flags) !== this.flags || flags & this.not) return false;
    const length = s.c_tokens[c];
    if (length < this.length[0] || length > this.length[1]) return false;
    if (this.reward[0] === -Infinity && this.reward[1] === Infinity) return true;
    return s.c_reward[c] >= this.reward[0] && s.c_reward[c] <= this.reward[1];
  }

  // The groups that match, in the order of the store, and the number of their completions that match.
  // `found` marks the groups in which the query was found.
  apply(s, found) {
    const groups = new Uint32Array(s.size);
    const verifierOk = s.names.verifiers.map((names) => !this.verifier.size || names.split("\n").some((name) => this.verifier.has(name)));
    const [lowStep, highStep] = this.step;
    const needs = this.needsCompletion;
    let [size, completions] = [0, 0];
    for (let g = 0; g < s.size; g++) {
      if (s.g_step[g] < lowStep || s.g_step[g] > highStep) continue;
      if (this.outcome.size && !this.outcome.has(s.g_outcome[g])) continue;
      if (this.run.size && !this.run.has(s.g_run[g])) continue;
      if (this.source.size && !this.source.has(s.g_source[g])) continue;
      if (this.cause.size && !this.cause.has(s.g_cause[g])) continue;
      if (!verifierOk[s.g_verifiers[g]]) continue;
      if (found && !found[g]) continue;
      let hits = s.g_count[g];
      if (needs) {
        hits = 0;
        for (let c = s.g_first[g]; c < s.g_first[g + 1]; c++) if (this.completion(s, c)) hits += 1;
        if (!hits) continue;
      }
      groups[size++] = g;
      completions += hits;
    }
    return { groups: groups.subarray(0, size), completions };
  }
}

// What the query looks for in lower-case texts: a text, or an expression between slashes.
function matcher(query) {
  const regular = query.match(/^\/(.+)\/$/);
  if (!regular) {
    const wanted = query.toLowerCase();
    return (text) => text.includes(wanted);
  }
  const expression = new RegExp(regular[1], "imu");
  return (text) => expression.test(text);
}

const promptText = (prompt) => (typeof prompt === "string" ? prompt : prompt.map((turn) => contentText(turn.content)).join("\n"));
const contentText = (content) => (typeof content === "string" ? content : JSON.stringify(content));

// Everything in a group that can be searched, in lower case. It is kept as long as its chunk is.
function searchable(group) {
  if (group.searchable === undefined) {
    const found = [promptText(group.prompt), ...group.ground_truths.map(contentText), group.row, group.detail];
    for (const { text, verdicts } of group.completions) {
      found.push(text);
      for (const verdict of Object.values(verdicts)) found.push(verdict.extracted ?? "", verdict.detail ?? "");
    }
    group.searchable = found.join("\n").toLowerCase();
  }
  return group.searchable;
}

class Browser {
  constructor(host, store) {
    this.host = host;
    this.store = store;
    this.filter = new Filter();
    this.sort = "step";
    this.found = null;
    this.shown = new Uint32Array(0);
    this.selected = -1;
    this.mode = "version";
    this.buildControls();
    this.buildList();
    this.detail = el("article", { class: "detail", tabIndex: -1, hidden: true, "aria-label": "Group" });
    host.replaceChildren(el("div", { class: "browser" }, this.controls, el("div", { class: "results" }, this.summary, this.list), this.detail));
    this.refresh();
  }

  // --- controls -----------------------------------------------------------------------------------

  buildControls() {
    const s = this.store;
    this.search = el("input", { type: "search", id: "search", placeholder: "Search", title: "Search in prompts, labels, answers and verdicts; /.../ is a regular expression", "aria-label": "Search",
      onfocus: () => this.prepareSearch(), oninput: debounce(150, () => this.runSearch()) });
    const order = el("select", { id: "sort", onchange: () => ((this.sort = order.value), this.refresh()) },
      Object.entries(SORTS).map(([key, [label]]) => el("option", { value: key }, label)));
    this.facets = el("details", { class: "facets", open: innerWidth > 800 }, el("summary", {}, "Filters"),
      this.facet("outcome", s.outcomes.map(outcomeLabel)),
      s.runs.length > 1 && this.facet("run", s.runs.map((run) => run.name)),
      this.facet("verifier", s.verifiers, (i) => s.verifiers[i]),
      this.facet("source", s.names.source.map(short), undefined, s.names.source),
      this.facet("cause", s.names.cause.map((cause) => cause || "(none)")),
      this.flagFacet(),
      this.range("step", "Step", 1),
      this.range("reward", "Reward", "any"),
      this.range("length", "Tokens", 1),
      el("button", { onclick: () => this.clear() }, "Clear filters"));
    this.controls = el("aside", { "aria-label": "Filters" }, this.search, el("label", { class: "sort" }, "Order ", order), this.facets);
    this.summary = el("p", { class: "summary", role: "status" });
  }

  facet(name, labels, valueOf = (i) => i, titles = labels) {
    if (labels.length < 2 && name !== "outcome") return null;
    const boxes = labels.map((label, i) => el("label", { class: "check", title: titles[i] }, el("input", { type: "checkbox", name, value: i,
      onchange: (event) => {
        this.filter[name][event.target.checked ? "add" : "delete"](valueOf(i));
        this.refresh();
      } }), el("span", { class: name === "outcome" ? `badge o${i}` : "" }, label)));
    return el("fieldset", {}, el("legend", {}, name), boxes);
  }

  flagFacet() {
    const boxes = Object.entries(FLAGS).map(([label, bit]) => {
      const pick = el("select", { "aria-label": label, name: label, onchange: () => {
        this.filter.flags = (this.filter.flags & ~bit) | (pick.value === "yes" ? bit : 0);
        this.filter.not = (this.filter.not & ~bit) | (pick.value === "no" ? bit : 0);
        this.refresh();
      } }, ["any", "yes", "no"].map((value) => el("option", { value }, value)));
      return el("label", { class: "check" }, `${label} `, pick);
    });
    return el("fieldset", {}, el("legend", {}, "completion"), boxes);
  }

  range(name, label, step) {
    const input = (end, hint) => el("input", { type: "number", step, placeholder: hint, name: `${name}-${hint}`, "aria-label": `${label}, ${hint}`,
      oninput: (event) => {
        const value = event.target.value;
        this.filter[name][end] = value === "" ? (end ? Infinity : -Infinity) : +value;
        this.refresh();
      } });
    return el("fieldset", { class: "range" }, el("legend", {}, label), input(0, "from"), input(1, "to"));
  }

  clear() {
    this.filter.clear();
    this.found = null;
    for (const input of this.controls.querySelectorAll("input")) {
      if (input.type === "checkbox") input.checked = false;
      else input.value = "";
    }
    for (const pick of this.facets.querySelectorAll("select")) pick.value = "any";
    this.refresh();
  }

  // --- search -------------------------------------------------------------------------------------

  // Decode what a search will read, while the reader types.
  async prepareSearch() {
    for (const chunk of this.store.chunks) {
      if (cachedBytes > MOST_CACHED_BYTES / 2 || this.filter.query) return;
      if (textsNow(chunk)) continue;
      (await texts(chunk)).forEach(searchable);
      await new Promise((resume) => setTimeout(resume));
    }
  }

  // Reads chunk after chunk; what was found so far is shown meanwhile.
  async runSearch() {
    const query = this.search.value.trim();
    if (query === this.filter.query) return;
    this.filter.query = query;
    this.found = null;
    this.problem = "";
    const asked = (this.asked = Symbol(query));
    if (query) {
      let test;
      try {
        test = matcher(query);
      } catch (error) {
        this.problem = `not an expression: ${error.message}`;
        return this.refresh();
      }
      await this.searchChunks(test, asked);
    }
    if (asked === this.asked) {
      this.searching = "";
      this.refresh();
    }
  }

  async searchChunks(test, asked) {
    const s = this.store;
    const members = s.chunks.map(() => []);
    for (let g = 0; g < s.size; g++) members[s.g_chunk[g]].push(g);
    const found = (this.found = new Uint8Array(s.size));
    let shownAt = performance.now();
    for (let i = 0; i < s.chunks.length; i++) {
      if (!members[i].length) continue;
      // Decompression runs beside this loop.
      for (const next of s.chunks.slice(i, i + AHEAD)) texts(next);
      const chunk = textsNow(s.chunks[i]) ?? (await texts(s.chunks[i]));
      if (asked !== this.asked) return;
      for (const g of members[i]) {
        if (test(searchable(chunk[s.g_slot[g]]))) found[g] = 1;
      }
      if (performance.now() - shownAt > 100) {
        this.searching = `searched ${percent(i / s.chunks.length)} …`;
        this.refresh();
        await new Promise((resume) => setTimeout(resume));
        shownAt = performance.now();
      }
    }
  }

  // --- list ---------------------------------------------------------------------------------------

  refresh() {
    const began = performance.now();
    const { groups, completions } = this.filter.apply(this.store, this.found);
    const key = SORTS[this.sort][1];
    if (this.sort !== "step" || this.store.runs.length > 1) {
      const keys = new Float64Array(this.store.size);
      for (const g of groups) keys[g] = key(this.store, g);
      groups.sort((a, b) => keys[a] - keys[b] || a - b);
    }
    this.shown = groups;
    const left = this.store.runs.filter((run) => run.rollouts.stride > 1)
      .map((run) => `${run.name}: 1 of ${run.rollouts.stride} groups is in this report`);
    const one = completions === 1 ? "rollout" : "rollouts";
    this.summary.textContent = [this.problem || `${whole(completions)} ${one} in ${whole(groups.length)} groups`,
      this.searching, ...left].filter(Boolean).join(" · ");
    this.spacer.style.height = `${groups.length * ROW}px`;
    this.list.scrollTop = Math.min(this.list.scrollTop, groups.length * ROW);
    this.paint();
    this.filterMs = performance.now() - began;
  }

  buildList() {
    this.rows = el("div", { class: "rows" });
    this.spacer = el("div", { class: "spacer" }, this.rows);
    this.list = el("div", { class: "list", tabIndex: 0, role: "listbox", id: "groups", "aria-label": "Groups",
      onscroll: () => this.paint(), onkeydown: (event) => this.key(event) }, this.spacer);
    new ResizeObserver(() => this.paint()).observe(this.list);
  }

  paint() {
    const first = Math.max(0, Math.floor(this.list.scrollTop / ROW) - 4);
    const end = Math.min(this.shown.length, first + Math.ceil((this.list.clientHeight || 600) / ROW) + 8);
    this.rows.style.transform = `translateY(${first * ROW}px)`;
    const made = [];
    for (let i = first; i < end; i++) made.push(this.row(this.shown[i], i));
    this.rows.replaceChildren(...made);
  }

  row(g, i) {
    const s = this.store;
    const preview = el("span", { class: "preview" });
    const chunk = s.chunkOf(g);
    const tell = (groups) => (preview.textContent = promptText(groups[s.g_slot[g]].prompt).slice(0, 160).replaceAll("\n", " "));
    const now = textsNow(chunk);
    if (now) tell(now);
    else if (!this.isScrolling()) texts(chunk).then(tell, () => {});
    const reward = s.g_reward[g];
    return el("div", { class: `row ${g === this.selected ? "selected" : ""}`, role: "option", id: `row-${i}`, "aria-selected": String(g === this.selected), onclick: () => this.open(g) },
      el("span", { class: "step" }, s.runs.length > 1 && el("i", { class: `run-mark ${runClass(s.g_run[g])}` }), `${s.g_step[g]}`),
      el("span", { class: "draw" }, `#${s.g_draw[g]}`, s.g_attempt[g] > 1 && el("small", {}, ` ×${s.g_attempt[g]}`)),
      el("span", { class: `badge o${s.g_outcome[g]}` }, outcomeLabel(s.outcomes[s.g_outcome[g]])),
      this.squares(g),
      el("span", { class: "n" }, Number.isNaN(reward) ? "–" : number(reward)),
      el("span", { class: "n length" }, s.g_count[g] ? `${number(s.g_longest[g])} tok` : ""),
      preview);
  }

  // Rows that fly past need no preview.
  isScrolling() {
    const now = performance.now();
    const fast = this.lastPaint && now - this.lastPaint < 30;
    this.lastPaint = now;
    return fast;
  }

  // One square for each completion: its reward, and whether the filter lets it through.
  squares(g) {
    const s = this.store;
    const needs = this.filter.needsCompletion;
    const made = el("span", { class: "squares" });
    for (let c = s.g_first[g]; c < Math.min(s.g_first[g + 1], s.g_first[g] + 32); c++) {
      const hit = needs && this.filter.completion(s, c) ? "hit" : "";
      made.append(el("i", { class: `${this.rewardClass(s.c_reward[c])} ${hit}`, title: number(s.c_reward[c]) }));
    }
    return made;
  }

  // Rewards in five classes between the lowest and the highest of the report.
  rewardClass(reward) {
    if (!this.rewards) {
      this.rewards = [Infinity, -Infinity];
      for (const value of this.store.c_reward) if (value === value) this.rewards = [Math.min(value, this.rewards[0]), Math.max(value, this.rewards[1])];
    }
    const [low, high] = this.rewards;
    return Number.isNaN(reward) ? "rx" : `r${Math.round((4 * (reward - low)) / (high - low || 1))}`;
  }

  key(event) {
    const page = Math.floor(this.list.clientHeight / ROW);
    const moves = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in moves) {
      event.preventDefault();
      this.move(moves[event.key]);
    } else if (event.key === "Enter" && this.selected >= 0) this.open(this.selected);
  }

  // Select the group that is `by` rows further; show it if a group is open.
  move(by) {
    if (!this.shown.length) return;
    const at = this.shown.indexOf(this.selected);
    const next = Math.max(0, Math.min(this.shown.length - 1, at < 0 ? 0 : at + by));
    this.selected = this.shown[next];
    this.reveal(next);
    if (!this.detail.hidden) this.open(this.selected);
  }

  // Bring a row of the list into view.
  reveal(i) {
    const top = i * ROW;
    if (top < this.list.scrollTop) this.list.scrollTop = top;
    if (top + ROW > this.list.scrollTop + this.list.clientHeight) this.list.scrollTop = top + ROW - this.list.clientHeight;
    this.list.setAttribute("aria-activedescendant", `row-${i}`);
    this.paint();
  }

  // --- one group ----------------------------------------------------------------------------------

  async open(g) {
    this.selected = g;
    this.paint();
    const s = this.store;
    const chunk = s.chunkOf(g);
    const [group, data] = await Promise.all([texts(chunk).then((groups) => groups[s.g_slot[g]]), tokens(chunk)]);
    if (this.selected !== g) return;
    this.current = { g, group, data };
    this.showGroup();
    if (this.detail.hidden) {
      this.detail.hidden = false;
      document.body.classList.add("with-detail");
      this.detail.focus({ preventScroll: true });
    }
    this.detail.scrollTop = 0;
    history.replaceState(null, "", `#rollouts/${s.g_run[g]}/${s.g_draw[g]}/${s.g_attempt[g]}`);
  }

  // Open a draw by its number, as a link names it.
  openDraw(run, draw, attempt) {
    const s = this.store;
    for (let g = 0; g < s.size; g++) {
      if (s.g_run[g] !== run || s.g_draw[g] !== draw || s.g_attempt[g] !== attempt) continue;
      this.reveal(this.shown.indexOf(g));
      return this.open(g);
    }
    return undefined;
  }

  close() {
    if (this.detail.hidden) return false;
    this.detail.hidden = true;
    document.body.classList.remove("with-detail");
    history.replaceState(null, "", "#rollouts");
    this.list.focus();
    return true;
  }

  showGroup() {
    const { g, group, data } = this.current;
    const s = this.store;
    const trained = s.g_trained[g] > 0 ? s.g_trained[g] - 1 : null;
    const count = s.g_count[g];
    const completions = Array.from({ length: count }, (_, i) => this.tokensOf(g, group, data, i));
    const versions = [...new Set(completions.flatMap((one) => one.spans.map((span) => span[1])))].sort((a, b) => a - b);
    const mode = el("select", { id: "mode", onchange: () => ((this.mode = mode.value), this.showGroup()) },
      Object.entries(MODES).map(([key, label]) => el("option", { value: key, selected: key === this.mode }, label)));
    const outcome = s.outcomes[s.g_outcome[g]];
    fill(this.detail,
      el("div", { class: "detail-head" },
        el("button", { class: "back", onclick: () => this.close() }, "← Groups"),
        el("h2", {}, `Prompt ${s.g_draw[g]} `, el("span", { class: `badge o${s.g_outcome[g]}` }, outcomeLabel(outcome))),
        el("div", { class: "steps" }, el("button", { onclick: () => this.move(-1), title: "Previous (k)" }, "↑"), el("button", { onclick: () => this.move(1), title: "Next (j)" }, "↓"))),
      this.facts(g, group, outcome),
      this.prompt(group),
      el("div", { class: "controls" }, el("label", {}, "Colour by ", mode), el("div", { class: "legend" }, modeLegend(this.mode, versions, trained))),
      completions.some((one) => !one.isCut) && el("p", { class: "note" }, "The tokens of a text are not known here; the strip above it has one cell for each."),
      el("div", { class: "side-by-side" }, completions.map((one, i) => this.card(g, group, one, i, trained))),
    );
    this.markFound();
  }

  tokensOf(g, group, data, i) {
    const s = this.store;
    // The tokens of a chunk follow each other in the order of its groups.
    let first = 0;
    for (let other = g; other > 0 && s.g_chunk[other - 1] === s.g_chunk[g] && s.g_run[other - 1] === s.g_run[g]; other--) {
      for (let c = s.g_first[other - 1]; c < s.g_first[other]; c++) first += s.c_tokens[c];
    }
    for (let c = s.g_first[g]; c < s.g_first[g] + i; c++) first += s.c_tokens[c];
    return new Tokens(data, s.g_slot[g], i, first, s.c_tokens[s.g_first[g] + i], group.completions[i].text);
  }

  facts(g, group, outcome) {
    const s = this.store;
    const run = s.runs[s.g_run[g]];
    const trainedAt = run.timeline.steps.find(([step]) => step === s.g_trained[g])?.[1];
    const facts = [
      s.runs.length > 1 && ["run", run.name],
      ["attempt", s.g_attempt[g]],
      ["row", group.row],
      ["label", group.ground_truths.map((truth) => contentText(truth)).join(" · ")],
      s.names.actor[s.g_actor[g]] && ["actor", s.names.actor[s.g_actor[g]]],
      s.g_started[g] > 0 && ["generated", `${clock(s.g_started[g], true)}, in ${duration(s.g_seconds[g])}`],
      outcome === "trained" ? ["trained", `at step ${s.g_trained[g]}${trainedAt ? `, ${clock(trainedAt, true)}` : ""}`] : ["ended", `before step ${s.g_step[g]} was taken`],
      s.names.cause[s.g_cause[g]] && ["cause", s.names.cause[s.g_cause[g]]],
      group.detail && ["detail", group.detail],
    ];
    return el("dl", { class: "facts" }, facts.filter(Boolean).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]));
  }

  prompt(group) {
    const turns = typeof group.prompt === "string" ? [{ role: "prompt", content: group.prompt }] : group.prompt;
    return el("div", { class: "prompt" }, turns.map((turn) => {
      const text = el("div", { class: "text" });
      growing(text, contentText(turn.content), 4000);
      return el("div", { class: "turn" }, el("b", {}, String(turn.role)), text);
    }));
  }

  card(g, group, completion, i, trained) {
    const s = this.store;
    const c = s.g_first[g] + i;
    const flags = Object.entries(FLAGS).filter(([, bit]) => s.c_flags[c] & bit).map(([label]) => label);
    const hit = this.filter.needsCompletion && this.filter.completion(s, c);
    return el("section", { class: `card ${hit ? "hit" : ""}`, tabIndex: 0, "aria-label": `Completion ${i}` },
      el("h3", {}, el("i", { class: `square ${this.rewardClass(s.c_reward[c])}` }), ` ${number(s.c_reward[c])}`,
        el("small", {}, ` ${whole(completion.count)} tokens · mean log-probability ${s.c_logprob[c].toFixed(3)}${flags.length ? ` · ${flags.join(", ")}` : ""}`)),
      this.verdicts(group.completions[i].verdicts),
      tokenStrip(completion, this.mode, trained),
      el("small", { class: "spans" }, completion.spans.map(([incarnation, version, start, end]) => `${incarnation}.${version}: ${start}–${end}`).join("  ")),
      tokenText(completion, this.mode, trained));
  }

  verdicts(verdicts) {
    return el("div", { class: "verdicts" }, Object.entries(verdicts).map(([name, verdict]) => {
      const more = [verdict.method, verdict.error_kind, verdict.detail, verdict.seconds && duration(verdict.seconds),
        ...Object.entries(verdict.extra ?? {}).map(([key, value]) => `${key}: ${contentText(value)}`)].filter(Boolean);
      return el("div", { class: verdict.error_kind ? "error" : "" }, el("b", {}, name), ` ${number(verdict.reward ?? null)}`,
        verdict.extracted !== undefined && [" extracted ", el("code", {}, verdict.extracted)], more.length > 0 && el("small", {}, ` ${more.join(" · ")}`));
    }));
  }

  // Mark where the query is found, across the elements of tokens.
  markFound() {
    if (!globalThis.Highlight || !CSS.highlights) return;
    CSS.highlights.delete("found");
    const query = this.filter.query;
    if (!query) return;
    const regular = query.match(/^\/(.+)\/$/);
    let expression;
    try {
      expression = new RegExp(regular ? regular[1] : query.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "giu");
    } catch {
      return;
    }
    const marks = new Highlight();
    for (const host of this.detail.querySelectorAll(".text, dd, code")) for (const range of rangesOf(host, expression)) marks.add(range);
    CSS.highlights.set("found", marks);
  }
}

function* rangesOf(host, expression) {
  const nodes = [];
  const starts = [];
  let text = "";
  const walker = document.createTreeWalker(host, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    nodes.push(walker.currentNode);
    starts.push(text.length);
    text += walker.currentNode.data;
  }
  const place = (offset, isEnd) => {
    let i = lower(starts, offset + (isEnd ? 0 : 1)) - 1;
    i = Math.max(0, i);
    return [nodes[i], offset - starts[i]];
  };
  for (const match of text.matchAll(expression)) {
    if (!match[0]) continue;
    const range = document.createRange();
    range.setStart(...place(match.index, false));
    range.setEnd(...place(match.index + match[0].length, true));
    yield range;
  }
}

// The rollout browser: a list of groups of any length, next to its filter and search, and one open group.

const ROW = 46;
const SORTS = {
  step: ["step", (s, g) => s.g_step[g]],
  reward: ["mean reward", (s, g) => (Number.isNaN(s.g_reward[g]) ? Infinity : s.g_reward[g])],
  spread: ["spread of rewards", (s, g) => -s.g_spread[g]],
  longest: ["longest first", (s, g) => -s.g_longest[g]],
  seconds: ["slowest first", (s, g) => -s.g_seconds[g]],
  attempt: ["most attempts first", (s, g) => -s.g_attempt[g]],
};

class Browser {
  constructor(host, store) {
    this.store = store;
    this.sort = "step";
    this.shown = new Uint32Array(0);
    this.selected = -1;
    this.search = new Search(store, () => this.refresh());
    this.filter = new Filter();
    this.form = new FilterForm(store, this.filter, () => this.refresh());
    this.group = new GroupView(this);
    this.settle = debounce(80, () => this.paint());
    this.buildList();
    const order = el("select", { id: "sort", onchange: () => ((this.sort = order.value), this.refresh()) },
      Object.entries(SORTS).map(([key, [label]]) => el("option", { value: key }, label)));
    const aside = el("aside", { "aria-label": "Filters" }, this.search.input, el("label", { class: "sort" }, "Order ", order), this.form.node);
    this.summary = el("p", { class: "summary", role: "status" });
    host.replaceChildren(el("div", { class: "browser" }, aside, el("div", { class: "results" }, this.summary, this.list), this.group.node));
    this.refresh();
  }

  // Show newer data. The filter, the search and the selected group stay.
  replaceStore(store) {
    const [old, g] = [this.store, this.selected];
    this.store = store;
    this.rewards = null;
    this.selected = g < 0 ? -1 : store.find(old.nameOf(g));
    if (this.group.current) this.group.current.g = this.selected;
    this.renewForm();
    if (this.search.query) this.search.replaceStore(store);
    else {
      this.search.store = store;
      this.refresh();
    }
  }

  // There may be new sources and causes. A form that is being used stays.
  renewForm() {
    const { node } = this.form;
    if (node.contains(document.activeElement)) return;
    this.form = new FilterForm(this.store, this.filter, () => this.refresh());
    this.form.node.open = node.open;
    node.replaceWith(this.form.node);
  }

  // --- list ---------------------------------------------------------------------------------------

  refresh() {
    const { groups, completions } = this.filter.apply(this.store, this.search.found);
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
    this.summary.textContent = [`${whole(completions)} ${one} in ${whole(groups.length)} groups`, this.search.news, ...left].filter(Boolean).join(" · ");
    this.spacer.style.height = `${groups.length * ROW}px`;
    this.list.scrollTop = Math.min(this.list.scrollTop, groups.length * ROW);
    this.paint();
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
    const isFast = this.isScrolling();
    if (isFast) this.settle();
    const made = [];
    for (let i = first; i < end; i++) made.push(this.row(this.shown[i], i, isFast));
    this.rows.replaceChildren(...made);
  }

  row(g, i, isFast) {
    const s = this.store;
    const preview = el("span", { class: "preview" });
    const chunk = s.chunkOf(g);
    const tell = (groups) => (preview.textContent = promptText(groups[s.g_slot[g]].prompt).slice(0, 160).replaceAll("\n", " "));
    const now = textsNow(chunk);
    if (now) tell(now);
    else if (!isFast) texts(chunk).then(tell, () => {});
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

  // Rows get a preview only when the list stops scrolling.
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
    if (!this.group.node.hidden) this.open(this.selected);
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

  open(g) {
    this.selected = g;
    this.paint();
    return this.group.open(g);
  }

  // Open a draw by its number, as a link names it.
  openDraw(run, draw, attempt) {
    const g = this.store.find([run, draw, attempt]);
    if (g < 0) return undefined;
    this.reveal(this.shown.indexOf(g));
    return this.open(g);
  }

  close() {
    if (this.group.node.hidden) return;
    this.group.close();
    this.list.focus();
  }
}

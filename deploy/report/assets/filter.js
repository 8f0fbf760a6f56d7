// The filter that decides which groups are shown, and the form that changes it.

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
  // `found` marks the groups in which a search was successful.
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

class FilterForm {
  // `changed` is called after every change of `filter`.
  constructor(store, filter, changed) {
    this.filter = filter;
    this.changed = changed;
    this.node = el("details", { class: "facets", open: innerWidth > 800 }, el("summary", {}, "Filters"),
      this.facet("outcome", store.outcomes.map(outcomeLabel)),
      store.runs.length > 1 && this.facet("run", store.runs.map((run) => run.name)),
      this.facet("verifier", store.verifiers, (i) => store.verifiers[i]),
      this.facet("source", store.names.source.map(short), undefined, store.names.source),
      this.facet("cause", store.names.cause.map((cause) => cause || "(none)")),
      this.flags(),
      this.range("step", "Step", 1),
      this.range("reward", "Reward", "any"),
      this.range("length", "Tokens", 1),
      el("button", { onclick: () => this.clear() }, "Clear filters"));
  }

  facet(name, labels, valueOf = (i) => i, titles = labels) {
    if (labels.length < 2 && name !== "outcome") return null;
    const boxes = labels.map((label, i) => el("label", { class: "check", title: titles[i] }, el("input", { type: "checkbox", name, value: i,
      checked: this.filter[name].has(valueOf(i)), onchange: (event) => {
        this.filter[name][event.target.checked ? "add" : "delete"](valueOf(i));
        this.changed();
      } }), el("span", { class: name === "outcome" ? `badge o${i}` : "" }, label)));
    return el("fieldset", {}, el("legend", {}, name), boxes);
  }

  flags() {
    const boxes = Object.entries(FLAGS).map(([label, bit]) => {
      const pick = el("select", { "aria-label": label, name: label, onchange: () => {
        this.filter.flags = (this.filter.flags & ~bit) | (pick.value === "yes" ? bit : 0);
        this.filter.not = (this.filter.not & ~bit) | (pick.value === "no" ? bit : 0);
        this.changed();
      } }, ["any", "yes", "no"].map((value) => el("option", { value }, value)));
      pick.value = this.filter.flags & bit ? "yes" : this.filter.not & bit ? "no" : "any";
      return el("label", { class: "check" }, `${label} `, pick);
    });
    return el("fieldset", {}, el("legend", {}, "completion"), boxes);
  }

  range(name, label, step) {
    const input = (end, hint) => el("input", { type: "number", step, placeholder: hint, name: `${name}-${hint}`, "aria-label": `${label}, ${hint}`,
      value: Number.isFinite(this.filter[name][end]) ? this.filter[name][end] : "",
      oninput: (event) => {
        const value = event.target.value;
        this.filter[name][end] = value === "" ? (end ? Infinity : -Infinity) : +value;
        this.changed();
      } });
    return el("fieldset", { class: "range" }, el("legend", {}, label), input(0, "from"), input(1, "to"));
  }

  clear() {
    this.filter.clear();
    for (const input of this.node.querySelectorAll("input")) {
      if (input.type === "checkbox") input.checked = false;
      else input.value = "";
    }
    for (const pick of this.node.querySelectorAll("select")) pick.value = "any";
    this.changed();
  }
}

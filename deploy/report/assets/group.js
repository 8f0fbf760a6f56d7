// One group: its facts, its prompt, and its completions side by side.

class GroupView {
  constructor(browser) {
    this.browser = browser;
    this.mode = "version";
    this.current = null;
    this.node = el("article", { class: "detail", tabIndex: -1, hidden: true, "aria-label": "Group" });
  }

  // Read and show the group `g` of the browser's store, unless the reader has opened another one meanwhile.
  async open(g) {
    const s = this.browser.store;
    const chunk = s.chunkOf(g);
    const [group, data] = await Promise.all([texts(chunk).then((groups) => groups[s.g_slot[g]]), tokens(chunk)]);
    if (this.browser.selected !== g || this.browser.store !== s) return;
    this.current = { g, group, data };
    this.show();
    if (this.node.hidden) {
      this.node.hidden = false;
      document.body.classList.add("with-detail");
      this.node.focus({ preventScroll: true });
    }
    this.node.scrollTop = 0;
    history.replaceState(null, "", `#rollouts/${s.g_run[g]}/${s.g_draw[g]}/${s.g_attempt[g]}`);
  }

  // Show the same again, for another theme.
  redraw() {
    if (this.current) this.show();
  }

  close() {
    this.node.hidden = true;
    this.current = null;
    document.body.classList.remove("with-detail");
    history.replaceState(null, "", "#rollouts");
  }

  show() {
    const { g, group, data } = this.current;
    const s = this.browser.store;
    const trained = s.g_trained[g] > 0 ? s.g_trained[g] - 1 : null;
    const count = s.g_count[g];
    const completions = Array.from({ length: count }, (_, i) => this.tokensOf(g, group, data, i));
    const versions = [...new Set(completions.flatMap((one) => one.spans.map((span) => span[1])))].sort((a, b) => a - b);
    const mode = el("select", { id: "mode", onchange: () => ((this.mode = mode.value), this.show()) },
      Object.entries(MODES).map(([key, label]) => el("option", { value: key, selected: key === this.mode }, label)));
    const outcome = s.outcomes[s.g_outcome[g]];
    fill(this.node,
      el("div", { class: "detail-head" },
        el("button", { class: "back", onclick: () => this.browser.close() }, "← Groups"),
        el("h2", {}, `Prompt ${s.g_draw[g]} `, el("span", { class: `badge o${s.g_outcome[g]}` }, outcomeLabel(outcome))),
        el("div", { class: "steps" }, el("button", { onclick: () => this.browser.move(-1), title: "Previous (k)" }, "↑"), el("button", { onclick: () => this.browser.move(1), title: "Next (j)" }, "↓"))),
      this.facts(g, group, outcome),
      this.prompt(group),
      el("div", { class: "controls" }, el("label", {}, "Colour by ", mode), el("div", { class: "legend" }, modeLegend(this.mode, versions, trained))),
      completions.some((one) => !one.isCut) && el("p", { class: "note" }, "The tokens of a text are not known here; the strip above it has one cell for each."),
      el("div", { class: "side-by-side" }, completions.map((one, i) => this.card(g, group, one, i, trained))),
    );
    this.browser.search.mark(this.node);
  }

  tokensOf(g, group, data, i) {
    const s = this.browser.store;
    // The tokens of a chunk follow each other in the order of its groups.
    let first = 0;
    for (let other = g; other > 0 && s.g_chunk[other - 1] === s.g_chunk[g] && s.g_run[other - 1] === s.g_run[g]; other--) {
      for (let c = s.g_first[other - 1]; c < s.g_first[other]; c++) first += s.c_tokens[c];
    }
    for (let c = s.g_first[g]; c < s.g_first[g] + i; c++) first += s.c_tokens[c];
    return new Tokens(data, s.g_slot[g], i, first, s.c_tokens[s.g_first[g] + i], group.completions[i]);
  }

  facts(g, group, outcome) {
    const s = this.browser.store;
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
    return el("div", { class: "prompt" }, turns.map(turnOf));
  }

  card(g, group, completion, i, trained) {
    const s = this.browser.store;
    const c = s.g_first[g] + i;
    const flags = Object.entries(FLAGS).filter(([, bit]) => s.c_flags[c] & bit).map(([label]) => label);
    const hit = this.browser.filter.needsCompletion && this.browser.filter.completion(s, c);
    return el("section", { class: `card ${hit ? "hit" : ""}`, tabIndex: 0, "aria-label": `Completion ${i}` },
      el("h3", {}, el("i", { class: `square ${this.browser.rewardClass(s.c_reward[c])}` }), ` ${number(s.c_reward[c])}`,
        el("small", {}, ` ${whole(completion.count)} tokens · mean log-probability ${s.c_logprob[c].toFixed(3)}${flags.length ? ` · ${flags.join(", ")}` : ""}${exitOf(group.completions[i])}`)),
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
}

// The numbers of turns and branches of an episode, and why there are no more.
function exitOf({ turns = [], exit }) {
  const branches = branchesOf(turns).length;
  const inBranches = branches > 1 ? ` in ${branches} branches` : "";
  return turns.length > 0 ? ` · ${turns.length} turn${turns.length > 1 ? "s" : ""}${inBranches}, exit ${exit}` : "";
}

// The use of tokens, groups and time, and the yield of the data sources.

const last = (run, field) => lastOf(run.lines[field] ?? []);
const total = (values) => (values ?? []).reduce((sum, value) => sum + (value ?? 0), 0);

function showWaste(host, runs) {
  fill(host,
    el("h2", {}, "Completion tokens"),
    el("p", { class: "note" }, "Every generated token of the draws that ended, by what became of it."),
    bars(runs, tokenParts),
    el("h2", {}, "Groups"),
    el("p", { class: "note" }, "Every draw: drawn = trained + zero gradient + stale + failed + in flight."),
    bars(runs, groupParts),
    el("h2", {}, "Learner's time"),
    el("p", { class: "note" }, "Wall time of the steps. A learner that waits wants more actors; one that never waits could feed on fewer."),
    bars(runs, timeParts, duration),
    el("div", { class: "pair" },
      el("div", {}, el("h2", {}, "Throughput"), throughput(runs)),
      el("div", {}, el("h2", {}, "Settings"), settings(runs))),
    el("h2", {}, "Data sources"),
    sourceTable(runs),
    causeTable(runs),
  );
}

function tokenParts(run) {
  const generated = last(run, "tokens_generated_total");
  if (!Number.isFinite(generated)) return [];
  const trained = last(run, "tokens_trained_total");
  if (run.lines.tokens_zero_gradient_total) {
    const part = (name) => last(run, `tokens_${name}_total`);
    return [["trained", trained, "good"], ["zero gradient", part("zero_gradient"), "idle"], ["masked", part("masked"), "mask"],
      ["stale", part("stale"), "old"], ["failed", part("failed"), "bad"], ["lost with an attempt", part("lost"), "bad"]];
  }
  const wasted = last(run, "tokens_wasted_total");
  const stale = Math.min(run.tokens.stale, wasted);
  const rest = Math.max(0, generated - trained - wasted);
  const zero = Math.min(run.tokens.zero_gradient, rest);
  return [["trained", trained, "good"], ["zero gradient", zero, "idle"], ["masked", rest - zero, "mask"], ["stale", stale, "old"],
    ["failed or lost", wasted - stale, "bad"]];
}

function groupParts(run) {
  const count = (name) => last(run, name);
  if (!Number.isFinite(count("prompts_drawn_total"))) return [];
  return [["trained", count("groups_trained_total"), "good"], ["zero gradient", count("groups_zero_gradient_total"), "idle"],
    ["stale", count("groups_stale_total"), "old"], ["failed", count("groups_failed_total"), "bad"],
    ["in flight", count("groups_in_flight"), "mask"]];
}

function timeParts(run) {
  const whole = last(run, "wall_s");
  if (!Number.isFinite(whole)) return [];
  const [steps, waits] = [total(run.lines.learner_step_s), total(run.lines.learner_wait_s)];
  return [["training", steps, "good"], ["waiting for a batch", waits, "idle"], ["starts, reports, checkpoints", Math.max(0, whole - steps - waits), "mask"]];
}

function bars(runs, parts, format = number) {
  return el("div", { class: "bars" }, runs.map((run, r) => {
    const found = parts(run);
    const sum = found.reduce((all, [, value]) => all + value, 0);
    const bar = el("div", { class: "bar", role: "img" });
    const keys = el("div", { class: "legend" });
    for (const [label, value, kind] of found) {
      if (!(value > 0)) continue;
      const piece = el("i", { class: kind, title: `${label}: ${format(value)}` });
      piece.style.flexGrow = value / sum;
      bar.append(piece);
      keys.append(el("span", { class: `key ${kind}` }, el("i"), `${label} `, el("b", {}, percent(value / sum)), ` ${format(value)}`));
    }
    bar.setAttribute("aria-label", keys.textContent);
    const name = runs.length > 1 && el("div", { class: `run ${runClass(r)}` }, el("i"), run.name);
    return found.length ? el("div", {}, name, bar, keys) : el("p", { class: "note" }, `${run.name}: no step is recorded`);
  }));
}

function throughput(runs) {
  const ratio = (above, below) => (below > 0 ? above / below : NaN);
  const rows = [
    ["steps", (run) => whole(last(run, "step"))],
    ["wall time", (run) => duration(last(run, "wall_s"))],
    ["generated tokens a second", (run) => number(ratio(last(run, "tokens_generated_total"), last(run, "wall_s")))],
    ["trained tokens a second", (run) => number(ratio(last(run, "tokens_trained_total"), last(run, "wall_s")))],
    ["generated tokens for each trained one", (run) => number(ratio(last(run, "tokens_generated_total"), last(run, "tokens_trained_total")))],
    ["drawn groups for each trained one", (run) => number(ratio(last(run, "prompts_drawn_total"), last(run, "groups_trained_total")))],
    ["seconds a step, median", (run) => number(median(steps(run)))],
    ["seconds a step, 95th percentile", (run) => number(quantile(steps(run), 0.95))],
    ["learner waits", (run) => percent(ratio(total(run.lines.learner_wait_s), last(run, "wall_s")))],
    ["lag, mean and largest", (run) => `${number(mean(run.lines.lag_mean))}, ${number(largest(run.lines.lag_max))}`],
    ["refused duplicates", (run) => number(last(run, "duplicates_refused_total"))],
    ["reward, first tenth → last tenth", (run) => ends(run.lines.reward_mean)],
    ["held-out accuracy, first → last", (run) => accuracy(run)],
    ["recorded rollouts", (run) => whole(run.rollouts.completions)],
  ];
  return table(["", ...runs.map((run) => run.name)], rows.map(([label, value]) => [label, ...runs.map(value)]));
}

const finite = (values) => (values ?? []).filter((value) => Number.isFinite(value));
const mean = (values) => total(finite(values)) / finite(values).length;
const largest = (values) => finite(values).reduce((a, b) => Math.max(a, b), -Infinity);
const median = (values) => quantile(values, 0.5);

function quantile(values, share) {
  const sorted = finite(values).sort((a, b) => a - b);
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] : NaN;
}

function steps(run) {
  const walls = run.lines.wall_s ?? [];
  return walls.slice(1).map((wall, i) => wall - walls[i]);
}

function ends(values) {
  const there = finite(values);
  const size = Math.max(1, Math.floor(there.length / 10));
  return there.length ? `${number(mean(there.slice(0, size)))} → ${number(mean(there.slice(-size)))}` : "–";
}

function accuracy(run) {
  const found = Object.entries(run.evaluations).filter(([name, points]) => /_accuracy$/.test(name) && points.length);
  const text = ([, value, , , by]) => number(value) + (by ? ` (v${by})` : "");
  return found.map(([, points]) => `${text(points[0])} → ${text(points.at(-1))}`).join("; ") || "–";
}

function sourceTable(runs) {
  const rows = runs.flatMap((run) => run.sources.map((one) => {
    const [, completions, rewards, reward, solved, tokens, truncated] = one.scored;
    const groups = Object.values(one.outcomes).reduce((a, b) => a + b, 0);
    const share = (name) => percent(one.outcomes[name] / groups);
    return [...(runs.length > 1 ? [run.name] : []), el("span", { title: one.source }, short(one.source)), whole(groups), share("trained"),
      share("zero_gradient"), share("stale"), share("failed"), number(reward / rewards), percent(solved / rewards),
      number(tokens / completions), percent(truncated / completions)];
  }));
  const head = ["source", "groups", "trained", "zero gradient", "stale", "failed", "reward", "solved", "tokens", "truncated"];
  return table(runs.length > 1 ? ["run", ...head] : head, rows, { numeric: runs.length > 1 ? 2 : 1 });
}

function causeTable(runs) {
  const rows = runs.flatMap((run) => run.causes.map(([outcome, cause, count]) => [run.name, outcome.replace("_", " "), cause, whole(count)]));
  return rows.length ? el("div", {}, el("h2", {}, "Why groups ended without training"), table(["run", "outcome", "cause", "groups"], rows, { numeric: 3 })) : "";
}

// Settings that differ between the runs are marked.
function settings(runs) {
  const keys = Object.keys(runs[0].settings);
  const shown = (run, key) => (run.settings[key] === null ? "–" : String(run.settings[key]));
  const rows = keys.map((key) => {
    const values = runs.map((run) => shown(run, key));
    const label = new Set(values).size > 1 ? el("b", {}, `${key} ≠`) : key;
    return [label, ...values.map((value) => el("span", { title: value }, value.length > 24 ? `…${value.slice(-22)}` : value))];
  });
  return table(["", ...runs.map((run) => run.name)], rows);
}

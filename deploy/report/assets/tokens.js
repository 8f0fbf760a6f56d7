// One completion: its text token by token, coloured by version, lag, log-probability or mask.

const FIRST_TOKENS = 1500;
const MORE_TOKENS = 6000;
const MODES = {
  none: "text",
  version: "version",
  lag: "lag",
  logprob: "log-probability",
  mask: "mask",
};
const LOGPROB_LEVELS = [0.05, 0.2, 0.5, 1, 2, 4, 7];

// The tokens of one completion, from its chunk.
class Tokens {
  // `first` is the place of its first token in the columns of the chunk.
  constructor(chunk, slot, i, first, count, completion) {
    const { lengths, logprobs } = chunk.columns;
    const { text, turns = [] } = completion;
    this.count = count;
    this.turns = turns;
    this.text = text;
    this.spans = chunk.spans[slot][i];
    this.lengths = lengths.subarray(first, first + count);
    this.steps = logprobs.subarray(first, first + count);
    this.scale = chunk.scale;
    this.isCut = !text || this.lengths.some((length) => length > 0);
    // Where the text of each token begins, and where the last one ends.
    this.begins = new Uint32Array(count + 1);
    for (let t = 0; t < count; t++) this.begins[t + 1] = this.begins[t] + this.lengths[t];
  }

  logprob(t) {
    return -((this.steps[t] / this.scale) ** 2);
  }

  spanOf(t) {
    return this.spans.find(([, , start, end]) => start <= t && t < end);
  }

  // The class of each token in a mode. `trained` is the version that the step trained, or null.
  classes(mode, trained) {
    const classes = new Array(this.count).fill("");
    if (mode === "logprob") {
      for (let t = 0; t < this.count; t++) {
        const level = LOGPROB_LEVELS.findIndex((bound) => -this.logprob(t) < bound);
        classes[t] = `p${level < 0 ? LOGPROB_LEVELS.length : level}`;
      }
    }
    for (const [, version, start, end, masked] of this.spans) {
      const lag = trained === null ? null : trained - version;
      const name = { version: versionClass(version), lag: lag === null ? "" : `l${Math.max(0, Math.min(7, lag))}`, mask: masked ? "masked" : "kept" }[mode];
      if (name !== undefined) classes.fill(name, start, end);
    }
    return classes;
  }

  describe(t, trained) {
    const [incarnation, version, , , masked] = this.spanOf(t) ?? [];
    const lines = [`token ${t}`, `log-probability ${this.logprob(t).toFixed(3)} (p ${percent(Math.exp(this.logprob(t)))})`];
    if (version !== undefined) lines.push(`version ${incarnation}.${version}${trained === null ? "" : `, lag ${trained - version}`}`);
    lines.push(trained === null ? "not trained" : masked ? "masked" : "in the loss");
    return lines;
  }
}

// The text of a completion; of an episode with branches one column for each, in which repeated turns are pale.
function tokenText(tokens, mode, trained) {
  const branches = branchesOf(tokens.turns);
  if (branches.length < 2) return pathText(tokens, tokens.turns, new Set(), mode, trained);
  const shown = new Set();
  const columns = branches.map((path, i) => {
    const text = pathText(tokens, path, new Set(shown), mode, trained);
    for (const turn of path) shown.add(turn);
    const numbers = path.map((turn) => tokens.turns.indexOf(turn) + 1).join(", ");
    return el("section", { class: "branch", "aria-label": `Branch ${i + 1}` }, el("small", {}, `branch ${i + 1}: turns ${numbers}`), text);
  });
  return el("div", { class: "side-by-side" }, columns);
}

// For each turn that no other continues, the turns from the first one to it.
function branchesOf(turns) {
  const pathTo = (turn) => (turn ? [...pathTo(turns[turn.parent]), turn] : []);
  return turns.filter((_, i) => !turns.some((turn) => turn.parent === i)).map(pathTo);
}

// The turns of one branch, or an answer without turns: one element for each token; long ones grow on demand.
function pathText(tokens, path, again, mode, trained) {
  const host = el("div", { class: "text" });
  const pale = (turn, node) => (again.has(turn) && node.classList.add("again"), node);
  if (!tokens.isCut && path.length > 0) {
    for (const turn of path) host.append(...[...turn.messages, turn.reply].map((message) => pale(turn, turnOf(message))));
    return host;
  }
  if (!tokens.isCut || (mode === "none" && tokens.turns.length < 2)) {
    growing(host, tokens.text, 20000);
    return host;
  }
  const classes = tokens.classes(mode, trained);
  const parts = path.length > 0 ? path : [{ start: 0, end: tokens.count, messages: [] }];
  const order = parts.flatMap((turn) => Array.from({ length: turn.end - turn.start }, (_, i) => [turn.start + i, turn]));
  let next = 0;
  const more = el("button", { class: "link", onclick: () => add(MORE_TOKENS) });
  const add = (count) => {
    const part = document.createDocumentFragment();
    for (const end = Math.min(order.length, next + count); next < end; next++) {
      const [t, turn] = order[next];
      if (t === turn.start) part.append(...turn.messages.map((message) => pale(turn, turnOf(message))));
      const piece = el("span", { class: classes[t] }, tokens.text.slice(tokens.begins[t], tokens.begins[t + 1]));
      piece.dataset.t = t;
      part.append(pale(turn, piece));
    }
    more.remove();
    host.append(part);
    if (next < order.length) {
      more.textContent = ` … ${whole(order.length - next)} more tokens`;
      host.append(more);
    }
  };
  add(FIRST_TOKENS);
  host.addEventListener("pointerover", (event) => {
    const piece = event.target.closest("[data-t]");
    if (piece) showTip(event, tokens.describe(+piece.dataset.t, trained));
  });
  host.addEventListener("pointerleave", hideTip);
  return host;
}

// One message of a conversation: its role, the tool that it is from, its text and its calls.
function turnOf(message) {
  const text = el("div", { class: "text" });
  growing(text, messageText(message), 4000);
  return el("div", { class: "turn" }, el("b", {}, [message.role, message.name].filter(Boolean).join(" ")), text);
}

function messageText({ content, tool_calls: calls }) {
  const called = (calls ?? []).map((call) => `${call.function?.name}(${contentText(call.function?.arguments ?? "")})`);
  return [contentText(content ?? ""), ...called].filter(Boolean).join("\n");
}

function growing(host, text, size) {
  host.append(text.slice(0, size));
  if (text.length <= size) return;
  const more = el("button", { class: "link", onclick: () => (more.remove(), growing(host, text.slice(size), 10 * size)) },
    ` … ${whole(text.length - size)} more characters`);
  host.append(more);
}

// All tokens of a completion in one strip, for any length.
function tokenStrip(tokens, mode, trained) {
  const canvas = el("canvas", { class: "strip", width: Math.min(Math.max(tokens.count, 1), 2000), height: 1, role: "img" });
  canvas.setAttribute("aria-label", `${tokens.count} tokens by ${MODES[mode]}`);
  const classes = tokens.classes(mode, trained);
  const paint = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const fills = new Map();
  for (let x = 0; x < canvas.width; x++) {
    const name = classes[Math.floor((x * tokens.count) / canvas.width)];
    if (!fills.has(name)) fills.set(name, style.getPropertyValue(`--${name}`).trim() || "transparent");
    paint.fillStyle = fills.get(name);
    paint.fillRect(x, 0, 1, 1);
  }
  return canvas;
}

// The legend of a mode for the versions in the group.
function modeLegend(mode, versions, trained) {
  const key = (name, label) => el("span", { class: "key" }, el("i", { class: name }), label);
  if (mode === "version") return versions.map((version) => key(versionClass(version), String(version)));
  if (mode === "lag") {
    if (trained === null) return ["was not trained: no lag"];
    return [...new Set(versions.map((version) => trained - version))].sort((a, b) => a - b).map((lag) => key(`l${Math.max(0, Math.min(7, lag))}`, String(lag)));
  }
  if (mode === "logprob") {
    return [...LOGPROB_LEVELS, Infinity].map((bound, i) => key(`p${i}`, `p > ${percent(bound === Infinity ? 0 : Math.exp(-bound))}`));
  }
  return mode === "mask" ? [key("kept", "in the loss"), key("masked", trained === null ? "not trained" : "masked")] : [];
}

// The search in prompts, labels, answers, the replies between them, and verdicts.

const AHEAD = 8;

const promptText = (prompt) => (typeof prompt === "string" ? prompt : prompt.map((turn) => contentText(turn.content)).join("\n"));
const contentText = (content) => (typeof content === "string" ? content : JSON.stringify(content));

// The regular expression of a query: the text itself, or the text between two slashes. Throws on an invalid one.
function expressionOf(query, flags) {
  const regular = query.match(/^\/(.+)\/$/);
  return new RegExp(regular ? regular[1] : query.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), flags);
}

// The matcher of a query for lower-case texts. A plain text needs no regular expression, which is faster.
function matcher(query) {
  if (!/^\/.+\/$/.test(query)) {
    const wanted = query.toLowerCase();
    return (text) => text.includes(wanted);
  }
  const expression = expressionOf(query, "imu");
  return (text) => expression.test(text);
}

// Everything in a group that can be searched, in lower case. It is kept as long as its chunk is.
function searchable(group) {
  if (group.searchable === undefined) {
    const found = [promptText(group.prompt), ...group.ground_truths.map(contentText), group.row, group.detail];
    for (const { text, verdicts, turns = [] } of group.completions) {
      found.push(text, ...turns.flatMap(({ messages }) => messages.map(messageText)));
      for (const verdict of Object.values(verdicts)) found.push(verdict.extracted ?? "", verdict.detail ?? "");
    }
    group.searchable = found.join("\n").toLowerCase();
  }
  return group.searchable;
}

class Search {
  // `changed` is called when more is found, and at the end.
  constructor(store, changed) {
    this.store = store;
    this.changed = changed;
    this.query = "";
    // For each group whether the query is in it; null without a query.
    this.found = null;
    this.news = "";
    this.input = el("input", { type: "search", id: "search", placeholder: "Search", "aria-label": "Search",
      title: "Search in prompts, labels, answers, replies and verdicts; /.../ is a regular expression",
      onfocus: () => this.prepare(), oninput: debounce(150, () => this.run()) });
  }

  clear() {
    this.input.value = "";
    return this.run();
  }

  // Search another store with the same query.
  replaceStore(store) {
    this.store = store;
    this.query = null;
    return this.run();
  }

  // Decode what a search will read, while the reader types.
  async prepare() {
    for (const chunk of this.store.chunks) {
      if (cachedBytes > MOST_CACHED_BYTES / 2 || this.query) return;
      if (textsNow(chunk)) continue;
      (await texts(chunk)).forEach(searchable);
      await new Promise((resume) => setTimeout(resume));
    }
  }

  // Reads chunk after chunk, and shows the matches so far meanwhile.
  async run() {
    const query = this.input.value.trim();
    if (query === this.query) return;
    this.query = query;
    this.found = null;
    this.news = "";
    if (query) {
      try {
        await this.searchChunks(query, matcher(query));
      } catch (error) {
        this.news = error instanceof SyntaxError ? `not an expression: ${error.message}` : `not searched: ${error.message}`;
      }
    }
    if (query === this.query) this.changed();
  }

  async searchChunks(query, test) {
    const s = this.store;
    const members = s.chunks.map(() => []);
    for (let g = 0; g < s.size; g++) members[s.g_chunk[g]].push(g);
    const found = (this.found = new Uint8Array(s.size));
    const isOver = () => query !== this.query || s !== this.store;
    let shownAt = performance.now();
    for (let i = 0; i < s.chunks.length; i++) {
      // Decompression runs in parallel with this loop.
      for (const next of s.chunks.slice(i, i + AHEAD)) texts(next);
      const chunk = textsNow(s.chunks[i]) ?? (await texts(s.chunks[i]));
      if (isOver()) return;
      for (const g of members[i]) if (test(searchable(chunk[s.g_slot[g]]))) found[g] = 1;
      if (performance.now() - shownAt > 100) {
        this.news = `searched ${percent(i / s.chunks.length)} …`;
        this.changed();
        await new Promise((resume) => setTimeout(resume));
        if (isOver()) return;
        shownAt = performance.now();
      }
    }
    this.news = "";
  }

  // Mark the matches of the query, across the elements of tokens.
  mark(host) {
    if (!globalThis.Highlight || !CSS.highlights) return;
    CSS.highlights.delete("found");
    if (!this.query) return;
    const marks = new Highlight();
    try {
      const expression = expressionOf(this.query, "giu");
      for (const text of host.querySelectorAll(".text, dd, code")) for (const range of rangesOf(text, expression)) marks.add(range);
    } catch {
      return;
    }
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

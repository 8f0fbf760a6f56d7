// Reads the parts of the report: from this page, or from the server of `--serve`.

const LIVE = !document.getElementById("blob-manifest");
const MOST_CACHED_BYTES = 256 * 2 ** 20;

// Decoded parts by name. The oldest are dropped when there are too many bytes.
const cache = new Map();
let cachedBytes = 0;

async function readBytes(name) {
  if (LIVE) {
    const answer = await fetch(`/blob/${name}`);
    if (!answer.ok) throw new Error(`part ${name}: ${answer.status}`);
    return new Uint8Array(await answer.arrayBuffer());
  }
  const text = atob(document.getElementById(`blob-${name}`).textContent);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

// A part, decoded by `decode` from its bytes. Several callers at once get the same promise.
function part(name, decode) {
  if (cache.has(name)) return cache.get(name).promise;
  const entry = { bytes: 0 };
  entry.promise = readBytes(name)
    .then(inflate)
    .then((buffer) => {
      entry.bytes = buffer.byteLength;
      cachedBytes += entry.bytes;
      for (const [old, { bytes }] of cache) {
        if (cachedBytes <= MOST_CACHED_BYTES) break;
        if (old === name || !bytes) continue;
        cachedBytes -= bytes;
        cache.delete(old);
      }
      return (entry.value = decode(buffer));
    });
  entry.promise.catch(() => cache.delete(name));
  cache.set(name, entry);
  return entry.promise;
}

const decodeJson = (buffer) => JSON.parse(new TextDecoder().decode(buffer));
const TYPES = { u1: Uint8Array, u2: Uint16Array, i4: Int32Array, f4: Float32Array, f8: Float64Array };

// The inverse of `pack` in columns.py: the header's fields, and a typed array for each column.
function unpack(buffer) {
  const size = new DataView(buffer).getUint32(0, true);
  const header = decodeJson(buffer.slice(4, 4 + size));
  const columns = {};
  let at = 4 + size;
  for (const [name, type, count] of header.columns) {
    at += (8 - (at % 8)) % 8;
    columns[name] = new TYPES[type](buffer, at, count);
    at += columns[name].byteLength;
  }
  return { ...header, columns };
}

const texts = (chunk) => part(chunk[0], decodeJson);
const tokens = (chunk) => part(chunk[1], unpack);

// The texts of a chunk if they are decoded already.
const textsNow = (chunk) => cache.get(chunk[0])?.value;

// All runs in one table of groups and one of completions; names of sources, actors and so on are shared.
class Store {
  constructor(runs) {
    this.runs = runs;
    this.chunks = runs.flatMap((run) => run.chunks);
    this.names = { source: [], verifiers: [], cause: [], actor: [] };
    this.outcomes = runs.length ? runs[0].index.outcomes : [];
    const columns = runs.map((run) => run.index.columns);
    this.size = columns.reduce((sum, c) => sum + c.g_draw.length, 0);
    this.completions = columns.reduce((sum, c) => sum + c.c_tokens.length, 0);
    for (const name of Object.keys(columns[0] ?? {})) {
      const whole = new columns[0][name].constructor(name[0] === "g" ? this.size : this.completions);
      let at = 0;
      for (const c of columns) {
        whole.set(c[name], at);
        at += c[name].length;
      }
      this[name] = whole;
    }
    this.g_run = new Uint16Array(this.size);
    this._join();
    this._summarize();
  }

  // Renumber the entries that each run has numbered by itself.
  _join() {
    const known = {};
    for (const name of Object.keys(this.names)) known[name] = new Map();
    let at = 0;
    let chunk = 0;
    this.runs.forEach((run, r) => {
      const size = run.index.columns.g_draw.length;
      const map = {};
      for (const [name, list] of Object.entries(run.index.names)) {
        map[name] = list.map((text) => {
          if (!known[name].has(text)) known[name].set(text, this.names[name].push(text) - 1);
          return known[name].get(text);
        });
      }
      for (let g = at; g < at + size; g++) {
        this.g_run[g] = r;
        this.g_chunk[g] += chunk;
        for (const name of Object.keys(map)) this[`g_${name}`][g] = map[name][this[`g_${name}`][g]];
      }
      at += size;
      chunk += run.chunks.length;
    });
    this.verifiers = [...new Set(this.names.verifiers.flatMap((names) => names.split("\n")))].filter(Boolean).sort();
  }

  // For each group: its first completion, mean reward, spread of rewards, longest completion, newest lag.
  _summarize() {
    this.g_first = new Uint32Array(this.size + 1);
    this.g_reward = new Float32Array(this.size).fill(NaN);
    this.g_spread = new Float32Array(this.size);
    this.g_longest = new Int32Array(this.size);
    for (let g = 0, c = 0; g < this.size; g++) {
      this.g_first[g] = c;
      let [sum, number, low, high] = [0, 0, Infinity, -Infinity];
      for (const end = c + this.g_count[g]; c < end; c++) {
        const reward = this.c_reward[c];
        if (reward === reward) {
          sum += reward;
          number += 1;
          low = Math.min(low, reward);
          high = Math.max(high, reward);
        }
        if (this.c_tokens[c] > this.g_longest[g]) this.g_longest[g] = this.c_tokens[c];
      }
      if (number) [this.g_reward[g], this.g_spread[g]] = [sum / number, high - low];
      this.g_first[g + 1] = c;
    }
  }

  chunkOf(g) {
    return this.chunks[this.g_chunk[g]];
  }

  // The name of a group in every store of the same runs: run, draw, attempt.
  nameOf(g) {
    return [this.g_run[g], this.g_draw[g], this.g_attempt[g]];
  }

  // The group of a name; -1 if it is not there.
  find([run, draw, attempt]) {
    for (let g = 0; g < this.size; g++) {
      if (this.g_run[g] === run && this.g_draw[g] === draw && this.g_attempt[g] === attempt) return g;
    }
    return -1;
  }
}

async function readManifest(tag) {
  if (!LIVE) return { manifest: JSON.parse(document.getElementById("blob-manifest").textContent), tag: "" };
  const answer = await fetch("/manifest", { headers: tag ? { "If-None-Match": tag } : {} });
  if (answer.status === 304) return { manifest: null, tag };
  if (!answer.ok) throw new Error(await answer.text());
  return { manifest: await answer.json(), tag: answer.headers.get("ETag") };
}

async function readRuns(manifest) {
  const runs = manifest.runs.map(async (entry) => ({
    ...(await part(entry.about, decodeJson)),
    index: await part(entry.index, unpack),
    chunks: entry.chunks,
  }));
  return Promise.all(runs);
}

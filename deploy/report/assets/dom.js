// Elements, numbers and times. Recorded data becomes text, never markup.

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

// An element with properties and children. A child that is a string becomes a text node.
function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else if (name in made && !name.includes("-")) made[name] = value;
    else made.setAttribute(name, value);
  }
  return fill(made, ...children);
}

// Replace the children of an element; null and false are left out.
function fill(host, ...children) {
  host.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return host;
}

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return `${+(value / 1e9).toPrecision(3)}G`;
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
  if (Number.isInteger(value)) return String(value);
  if (size >= 1e-3) return String(+value.toPrecision(3));
  return size === 0 ? "0" : value.toExponential(1);
}

const whole = (value) => Math.round(value).toLocaleString("en-US");
const percent = (share) => (Number.isFinite(share) ? `${(100 * share).toFixed(share && share < 0.1 ? 1 : 0)}%` : "–");

function duration(seconds) {
  if (seconds < 1) return `${number(1000 * seconds)} ms`;
  if (seconds < 10) return `${+seconds.toPrecision(2)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}

function clock(at, withDate) {
  const time = new Date(at * 1000);
  const text = time.toLocaleTimeString("en-GB");
  return withDate ? `${time.toLocaleDateString("en-CA")} ${text}` : text;
}

// The last part of a path, for labels; the whole path is in the title.
const short = (path) => path.split("/").filter(Boolean).pop() ?? path;

const runClass = (r) => `s${r % 8}`;
const versionClass = (version) => `v${((version % 8) + 8) % 8}`;

// A tooltip near the pointer.
function showTip(event, lines) {
  const tip = $("tip");
  tip.replaceChildren(...lines.map((line) => el("div", {}, line)));
  tip.hidden = false;
  const width = tip.offsetWidth;
  const x = Math.min(event.clientX + 14, innerWidth - width - 8);
  const y = event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18;
  tip.style.transform = `translate(${Math.max(4, x)}px, ${Math.max(4, y)}px)`;
}

const hideTip = () => ($("tip").hidden = true);

// The colour that a class gives, for a canvas. Themes change it.
function colours(prefix, count) {
  const style = getComputedStyle(document.documentElement);
  return Array.from({ length: count }, (_, i) => style.getPropertyValue(`--${prefix}${i}`).trim());
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function debounce(wait, act) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(...given), wait);
  };
}

function table(head, rows, { numeric = 1 } = {}) {
  const cell = (tag, value, i) => el(tag, { class: i >= numeric ? "n" : "" }, value instanceof Node ? value : String(value));
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      {},
      el("thead", {}, el("tr", {}, head.map((value, i) => cell("th", value, i)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((value, i) => cell("td", value, i))))),
    ),
  );
}

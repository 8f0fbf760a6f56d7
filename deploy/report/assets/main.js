// The page: reads the runs, shows one view at a time, follows the keyboard, and stays current when it is served.

const TABS = ["curves", "waste", "timeline", "rollouts"];
const THEMES = ["auto", "light", "dark"];
const POLL_MS = 5000;
const KEYS = [
  ["1 – 4", "the views"],
  ["/", "search the rollouts"],
  ["j, k or ↓, ↑", "next or previous group"],
  ["Enter", "open the group"],
  ["Esc", "close it; show the whole run"],
  ["←, →", "move the cursor of a curve, or the timeline"],
  ["t", "theme: automatic, light, dark"],
  ["?", "these keys"],
];
const state = { runs: [], shown: new Set(), tab: "", built: {}, tag: "" };

function setTheme(theme) {
  state.theme = theme;
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  $("theme").textContent = { auto: "Auto", light: "Light", dark: "Dark" }[theme];
  try {
    localStorage.setItem("olmorl-theme", theme);
  } catch {
    // A browser may refuse storage to a file.
  }
  state.built.timeline?.redraw();
  state.built.rollouts?.group.redraw();
}

function savedTheme() {
  try {
    const theme = localStorage.getItem("olmorl-theme");
    return THEMES.includes(theme) ? theme : "auto";
  } catch {
    return "auto";
  }
}

const shownRuns = () => state.runs.filter((_, r) => state.shown.has(r));

// Views are built when they are first shown.
function show(tab, focus) {
  const { built } = state;
  state.tab = tab;
  for (const name of TABS) {
    $(name).hidden = name !== tab;
    $(`tab-${name}`).setAttribute("aria-selected", String(name === tab));
    $(`tab-${name}`).tabIndex = name === tab ? 0 : -1;
  }
  document.body.dataset.tab = tab;
  if (!location.hash.startsWith(`#${tab}`)) history.replaceState(null, "", `#${tab}`);
  if (!built[tab]) {
    const runs = shownRuns();
    if (tab === "curves") built.curves = new Board($("curves"), runs);
    if (tab === "waste") built.waste = showWaste($("waste"), runs) ?? true;
    if (tab === "timeline") built.timeline = { redraw: showTimeline($("timeline"), runs) };
    if (tab === "rollouts") built.rollouts = new Browser($("rollouts"), new Store(runs));
  }
  if (focus) $(`tab-${tab}`).focus();
  if (tab === "rollouts") built.rollouts.paint();
}

// Show a view, and move the keyboard focus into it.
function jump(tab) {
  show(tab, true);
  if (tab === "rollouts") state.built.rollouts.list.focus();
}

function showRunKeys() {
  $("runs").replaceChildren(...state.runs.map((run, r) => {
    const label = [el("i"), run.name, el("small", {}, ` ${run.state === "running" ? "running" : `${whole(lastStep(run))} steps`}`)];
    if (state.runs.length === 1) return el("span", { class: `run ${runClass(r)}`, title: `${run.folder}: ${run.state}` }, label);
    return el("button", { class: `run ${runClass(r)}`, title: `${run.folder}: ${run.state}`, "aria-pressed": String(state.shown.has(r)), onclick: () => toggleRun(r) }, label);
  }));
}

const lastStep = (run) => lastOf(run.lines.step ?? []) || 0;

function toggleRun(r) {
  if (state.shown.has(r) && state.shown.size > 1) state.shown.delete(r);
  else state.shown.add(r);
  state.built = {};
  showRunKeys();
  show(state.tab);
}

function showNotes(manifest) {
  const notes = state.runs.flatMap((run) => run.notes.map((note) => (state.runs.length > 1 ? `${run.name}: ${note}` : note)));
  const made = `made ${clock(manifest.made_at, true)}`;
  const states = state.runs.length === 1 ? `${state.runs[0].folder}: ${state.runs[0].state}` : "";
  $("status").replaceChildren([states, made].filter(Boolean).join(" · "), ...notes.map((note) => el("div", { class: "warning" }, note)));
}

async function poll() {
  try {
    const { manifest, tag } = await readManifest(state.tag);
    $("live").className = "";
    if (manifest) {
      state.tag = tag;
      await update(manifest);
    }
  } catch (error) {
    $("live").className = "lost";
    $("live").title = error.message;
  }
  setTimeout(poll, POLL_MS);
}

// Take over newer parts. The view, the filters and the open group stay.
async function update(manifest) {
  const runs = await readRuns(manifest);
  const place = scrollY;
  state.runs = runs;
  if (!state.shown.size) runs.forEach((_, r) => state.shown.add(r));
  const { rollouts, curves } = state.built;
  state.built = {};
  showRunKeys();
  showNotes(manifest);
  if (rollouts && state.tab === "rollouts") {
    state.built.rollouts = rollouts;
    rollouts.replaceStore(new Store(shownRuns()));
  }
  show(state.tab || TABS[0]);
  if (curves && state.built.curves) {
    state.built.curves.set({ axis: curves.axis, window: curves.window });
    $("axis").value = curves.axis;
    $("smooth").value = curves.window;
  }
  scrollTo(0, place);
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    else state.built.rollouts?.close();
    return;
  }
  if (typing || $("keys").open) return;
  const browser = state.tab === "rollouts" && state.built.rollouts;
  const act = {
    "/": () => (show("rollouts"), state.built.rollouts.search.input.focus()),
    "?": () => $("keys").showModal(),
    t: () => setTheme(THEMES[(THEMES.indexOf(state.theme) + 1) % THEMES.length]),
    j: () => browser && browser.move(1),
    k: () => browser && browser.move(-1),
  }[event.key] ?? (TABS[+event.key - 1] && (() => jump(TABS[+event.key - 1])));
  if (!act || (event.target.id === "groups" && "jk".includes(event.key))) return;
  event.preventDefault();
  act();
}

function listen() {
  document.addEventListener("keydown", onKey);
  for (const tab of TABS) {
    $(`tab-${tab}`).addEventListener("click", () => show(tab));
    $(`tab-${tab}`).addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (move) show(TABS[(TABS.indexOf(tab) + move + TABS.length) % TABS.length], true);
    });
  }
  $("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(state.theme) + 1) % THEMES.length]));
  $("help").addEventListener("click", () => $("keys").showModal());
  $("keys").append(el("h2", {}, "Keys"), el("dl", {}, KEYS.flatMap(([key, what]) => [el("dt", {}, key), el("dd", {}, what)])),
    el("form", { method: "dialog" }, el("button", {}, "Close")));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(state.theme));
}

async function start() {
  setTheme(savedTheme());
  listen();
  const [tab, run, draw, attempt] = location.hash.slice(1).split("/");
  const { manifest, tag } = await readManifest("");
  state.tag = tag;
  state.tab = TABS.includes(tab) ? tab : TABS[0];
  await update(manifest);
  if (draw) state.built.rollouts?.openDraw(+run, +draw, +attempt);
  document.body.dataset.ready = "yes";
  if (LIVE) {
    $("live").hidden = false;
    setTimeout(poll, POLL_MS);
  }
}

globalThis.olmorlReport = state;
start().catch((error) => ($("status").textContent = `The report cannot be shown: ${error.message}`));

"""The page in the real browser: speed, filters, search, keyboard, themes, phone width, and hostile rollouts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from olmorl.deploy.report import cli
from olmorl.deploy.report.run_reader import RunReader
from olmorl.deploy.report.server import LiveReport, ReportServer
from tests import rollout_files
from tests.deploy.report.conftest import Make
from tests.deploy.report.made_runs import MadeRun
from tests.deploy.report.test_page import HOSTILE

READY = "body[data-ready]"
OPEN_S = 2.0
FILTER_MS = 200.0


class Page:
    """One tab; an error of the script, or a message on its console, fails the test."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self._context = browser.new_context(viewport={"width": 1300, "height": 850}, **options)
        self.tab = self._context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("console", lambda message: self.errors.append(message.text))
        self.tab.on("request", lambda request: self.requests.append(request.url))

    def open(self, address: Path | str) -> None:
        url = address.as_uri() if isinstance(address, Path) else address
        self.tab.goto(url)
        self.tab.wait_for_selector(READY, timeout=60_000)

    def show(self, tab: str) -> None:
        self.tab.click(f"#tab-{tab}")

    def text(self, selector: str) -> str:
        return str(self.tab.inner_text(selector))

    def run(self, script: str) -> Any:
        return self.tab.evaluate(script)

    def until(self, script: str, timeout_s: float = 30.0) -> None:
        """Wait for an expression to hold. Playwright's own wait needs `eval`, which the page's policy forbids."""
        end = time.monotonic() + timeout_s
        while not self.run(script):
            assert time.monotonic() < end, f"not within {timeout_s:g} s: {script}"
            self.tab.wait_for_timeout(20)

    def close(self) -> None:
        self._context.close()
        assert not self.errors, self.errors


@pytest.fixture
def page(chromium: Any) -> Iterator[Page]:
    made = Page(chromium)
    yield made
    made.close()


def written(*runs: Path) -> Path:
    """The report of `runs`, next to the first run."""
    output = runs[0].with_name("report.html")
    assert cli.main([*map(str, runs), "-o", str(output)]) == 0
    return output


# --- size ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of 200 steps with 51,200 rollouts and 5 million tokens."""
    folder = tmp_path_factory.mktemp("large") / "run"
    MadeRun(folder, steps=200, trained=20, filtered=12, group_size=8, tokens=100, failures=False)
    return written(folder)


def test_a_large_report_opens_at_once_and_asks_for_nothing(large: Path, page: Page) -> None:
    times = []
    for _ in range(3):
        began = time.monotonic()
        page.open(large)
        times.append(time.monotonic() - began)
    assert min(times) < OPEN_S, times
    assert set(page.requests) == {large.as_uri()}
    assert page.run("document.querySelectorAll('.plot .line').length") > 0, "curves are drawn"
    began = time.monotonic()
    page.show("rollouts")
    page.tab.wait_for_selector(".row")
    assert time.monotonic() - began < OPEN_S
    assert page.text(".summary") == "51,200 rollouts in 6,400 groups"
    page.run("for (const top of [9000, 90000, 150000]) document.getElementById('groups').scrollTop = top")
    page.until("[...document.querySelectorAll('.row .preview')].every(e => e.textContent.startsWith('What is'))")
    assert 10 < page.run("document.querySelectorAll('.row').length") < 60, "only the rows in view are made"


def test_a_large_report_filters_at_once(large: Path, page: Page) -> None:
    page.open(large)
    page.show("rollouts")
    taken = page.run(
        """() => {
          const browser = olmorlReport.built.rollouts;
          const found = {};
          const time = (name, act) => {
            const times = [0, 1, 2].map(() => {
              browser.form.clear();
              const began = performance.now();
              act();
              document.body.offsetHeight;
              return performance.now() - began;
            });
            found[name] = [Math.min(...times), browser.summary.textContent];
          };
          const put = (name, value) => {
            const input = document.querySelector(`[name="${name}"]`);
            input.value = value;
            input.dispatchEvent(new Event("input"));
            input.dispatchEvent(new Event("change"));
          };
          time("outcome", () => document.querySelector("input[name=outcome][value='1']").click());
          time("source", () => document.querySelector("input[name=source][value='0']").click());
          time("reward", () => put("reward-from", "1"));
          time("step", () => put("step-from", "150"));
          time("length", () => put("length-to", "50"));
          time("truncated", () => put("truncated", "yes"));
          time("nothing", () => put("solved", "any"));
          return found;
        }"""
    )
    assert {name: text for name, (_, text) in taken.items()} == {
        "outcome": "19,200 rollouts in 2,400 groups",
        "source": "25,600 rollouts in 3,200 groups",
        "reward": "16,000 rollouts in 4,000 groups",
        "step": "13,056 rollouts in 1,632 groups",
        "length": "0 rollouts in 0 groups",
        "truncated": "6,400 rollouts in 6,400 groups",
        "nothing": "51,200 rollouts in 6,400 groups",
    }
    assert all(milliseconds < FILTER_MS for milliseconds, _ in taken.values()), taken


def test_a_search_finds_a_text_anywhere_in_a_large_report(large: Path, page: Page) -> None:
    page.open(large)
    page.show("rollouts")
    page.tab.fill("#search", "what is 4321 + 1")
    page.until("document.querySelector('.summary').textContent === '8 rollouts in 1 groups'")
    page.tab.click(".row")
    page.tab.wait_for_selector(".card")
    assert "Prompt 4321" in page.text(".detail h2")
    assert page.run("[...CSS.highlights.get('found')].map(String)") == ["What is 4321 + 1"]


# --- what is shown ------------------------------------------------------------------------------


def test_a_group_side_by_side_with_verdicts_and_coloured_tokens(make_run: Make, page: Page) -> None:
    page.open(written(make_run(steps=6, tokens=30)))
    page.show("rollouts")
    page.tab.fill("input[name=step-from]", "6")
    page.tab.click("input[name=outcome][value='0']")
    page.tab.click(".row")
    page.tab.wait_for_selector(".card")
    assert len(page.tab.query_selector_all(".card")) == 4
    assert "math 0 extracted 1" in page.text(".card >> nth=1")
    assert "actor-" in page.text(".facts") and "at step 6" in page.text(".facts")

    def spans(mode: str) -> list[str]:
        page.tab.select_option("#mode", mode)
        classes: list[str] = page.run("[...document.querySelector('.card .text').children].map(e => e.className)")
        return classes

    assert spans("version") == ["v2"] * 10 + ["v5"] * 20
    assert spans("lag") == ["l3"] * 10 + ["l0"] * 20
    assert spans("mask") == ["masked"] * 10 + ["kept"] * 20, "lag 3 is over schedule.max_lag = 2"
    assert set(spans("logprob")) <= {f"p{level}" for level in range(8)} and len(set(spans("logprob"))) > 2
    assert spans("none") == []
    page.tab.select_option("#mode", "mask")
    page.tab.hover(".card .text span >> nth=2")
    tip = page.text("#tip")
    assert "token 2" in tip and "version 1.2, lag 3" in tip and "masked" in tip and "log-probability -" in tip


def test_the_branches_of_an_episode_are_side_by_side_with_tools_and_coloured_tokens(make_run: Make, page: Page) -> None:
    page.open(written(make_run(steps=6, tokens=30, parents=(-1, 0, 1, 0, -1))))
    page.show("rollouts")
    page.tab.fill("input[name=step-from]", "6")
    page.tab.click("input[name=outcome][value='0']")
    page.tab.click(".row")
    page.tab.wait_for_selector(".branch")
    assert "5 turns in 3 branches, exit done" in page.text(".card h3")
    heads = [one.inner_text() for one in page.tab.query_selector_all(".card:first-child .branch > small")]
    assert heads == ["branch 1: turns 1, 2, 3", "branch 2: turns 1, 4", "branch 3: turns 5"]
    places = page.run(
        "[...document.querySelectorAll('.card:first-child .branch')].map(e => e.getBoundingClientRect().toJSON())"
    )
    tops, lefts = [place["top"] for place in places], [place["left"] for place in places]
    assert len(set(tops)) == 1 and lefts[0] < lefts[1] < lefts[2]

    def tokens(branch: int) -> list[list[Any]]:
        found: list[list[Any]] = page.run(
            f"[...document.querySelectorAll('.card:first-child .branch')[{branch}].querySelectorAll('[data-t]')]"
            ".map(e => [+e.dataset.t, e.className])"
        )
        return found

    assert tokens(0) == [[t, "v2" if t < 10 else "v5"] for t in range(18)]
    assert tokens(1) == [*([t, "v2 again"] for t in range(6)), *([t, "v5"] for t in range(18, 24))], "turn 1 is pale"
    assert [t for t, _ in tokens(2)] == [*range(24, 30)]
    assert page.text(".card .branch:nth-child(2) .turn") == "tool add\nreply 3"
    page.tab.fill("#search", "reply 4")
    page.until("document.querySelector('.summary').textContent.startsWith('12 rollouts')")


def test_filtered_and_failed_groups_are_there(make_run: Make, page: Page) -> None:
    page.open(written(make_run(steps=3)))
    page.show("rollouts")
    page.tab.click("input[name=outcome][value='3']")
    assert page.text(".summary") == "0 rollouts in 2 groups"
    page.tab.click(".row")
    page.tab.wait_for_selector(".facts")
    assert "unscorable" in page.text(".facts") and "no judge answered" in page.text(".facts")


def test_long_completions_grow_on_demand(make_run: Make, page: Page) -> None:
    page.open(written(make_run(steps=1, trained=1, filtered=0, failures=False, group_size=2, tokens=9000)))
    page.show("rollouts")
    page.tab.click(".row")
    page.tab.wait_for_selector(".card")
    count = "document.querySelector('.card .text').querySelectorAll('span').length"
    page.until(f"{count} === 1500")
    page.tab.click(".card .text .link")
    assert page.run(count) == 7500
    page.tab.click(".card .text .link")
    assert page.run(count) == 9000 and page.run("document.querySelector('.card .strip').width") == 2000


def test_without_a_tokenizer_the_text_is_whole_and_the_strip_has_the_colours(make_run: Make, page: Page) -> None:
    page.open(written(make_run(steps=6, tokenizer=False)))
    page.show("rollouts")
    page.tab.click(".row")
    page.tab.wait_for_selector(".card")
    assert page.run("document.querySelector('.card .text').children.length") == 0
    assert len(page.text(".card .text")) > 20
    assert "The tokens of a text are not known here" in page.text(".detail")


def test_curves_meet_on_one_axis_and_evaluations_at_their_version(make_run: Make, page: Page) -> None:
    page.open(written(make_run("one", steps=5), make_run("two", steps=9)))
    series = """(title) => [...olmorlReport.built.curves.panels.values()].find(c => c.title === title).series
        .map(s => [s.label, [...s.xs], [...s.ys]])"""
    loss = page.tab.evaluate(series, "Loss")
    assert [(label, xs) for label, xs, _ in loss] == [("one", [*range(1, 6)]), ("two", [*range(1, 10)])]
    reward = [label for label, _, _ in page.tab.evaluate(series, "Reward")]
    assert reward[0] == "one: all scored groups" and "two: all scored groups" in reward
    held = page.tab.evaluate(series, "Held-out accuracy")
    assert held[0][1:] == [[0, 2, 4], [0.1, pytest.approx(0.3), 0.5]]
    assert page.tab.evaluate(series, "a_field_of_tomorrow")[0][2] == [2, 4, 6, 8, 10], "unknown fields are drawn too"
    assert page.run(
        "[...olmorlReport.built.curves.panels.values()].find(c => c.title === 'Held-out accuracy').series[0].ranges"
    ) == [[0, 1], [2, 3], [4, 5]], "a bar spans the versions that answered"
    assert "0.5 (v4-5)" in page.text("figure:has(.answered) .legend")
    page.tab.select_option("#axis", "wall_s")
    assert page.tab.evaluate(series, "Held-out accuracy")[0][1] == pytest.approx([0, 20 / 3600, 40 / 3600])
    page.tab.click("#runs button >> nth=1")
    assert [label for label, _, _ in page.tab.evaluate(series, "Loss")] == ["Loss"]


def test_waste_adds_up(make_run: Make, page: Page) -> None:
    page.open(written(make_run(steps=4, trained=3, filtered=1)))
    page.show("waste")
    text = page.text("#waste")
    text = " ".join(text.split())
    assert "trained 75% 576 zero gradient 25% 192" in text
    assert "training 40% 16 s waiting for a batch 20% 8 s" in text
    assert "unscorable" in text and "code.jsonl" in text


def test_the_timeline_has_lanes_and_faults(make_run: Make, page: Page) -> None:
    page.open(written(make_run(steps=4)))
    page.show("timeline")
    lanes = page.run("document.querySelector('.lanes').getAttribute('aria-label')")
    assert lanes == "run: 6 lanes, 1 faults"
    assert "actor-0 died" in page.text("#timeline table")
    colours = page.run(
        """() => { const c = document.querySelector('.lanes');
          const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; const seen = new Set();
          for (let i = 0; i < d.length; i += 4) if (d[i + 3] === 255) seen.add(`${d[i]},${d[i + 1]},${d[i + 2]}`);
          return seen.size; }"""
    )
    assert colours > 5
    page.tab.click("#timeline .link")
    assert page.run("document.activeElement.className") == "lanes"


# --- people ----------------------------------------------------------------------------------------


def test_the_keyboard_is_enough(make_run: Make, page: Page) -> None:
    page.open(written(make_run(steps=4)))
    press = page.tab.keyboard.press
    press("4")
    assert page.run("document.getElementById('rollouts').hidden") is False
    press("j")
    press("ArrowDown")
    press("Enter")
    page.tab.wait_for_selector(".detail h2")
    before = page.text(".detail h2")
    press("j")
    page.until(f"document.querySelector('.detail h2').innerText !== {json.dumps(before)}")
    press("k")
    page.until(f"document.querySelector('.detail h2').innerText === {json.dumps(before)}")
    press("Escape")
    assert page.run("document.querySelector('.detail').hidden") and page.run("document.activeElement.id") == "groups"
    press("/")
    assert page.run("document.activeElement.id") == "search"
    press("Escape")
    press("?")
    assert page.run("document.getElementById('keys').open")
    press("Escape")
    press("1")
    page.tab.focus(".plot")
    # The charts are drawn again once they have their width; a key before that moves nothing.
    page.until(
        "document.querySelector('.plot').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft'})),"
        "document.querySelector('.plot .cursor').getAttribute('visibility') === 'visible'"
    )


def test_a_link_names_a_group(make_run: Make, page: Page) -> None:
    report = written(make_run(steps=4))
    page.open(f"{report.as_uri()}#rollouts/0/7/1")
    page.tab.wait_for_selector(".card, .facts")
    assert "Prompt 7" in page.text(".detail h2")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_are_readable(make_run: Make, chromium: Any, scheme: str) -> None:
    page = Page(chromium, color_scheme=scheme)
    page.open(written(make_run(steps=2)))
    luminance = """(() => { const rgb = (c) => c.match(/[\\d.]+/g).slice(0, 3).map(Number);
        const light = (c) => rgb(c).map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
          .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
        const s = getComputedStyle(document.body);
        const m = getComputedStyle(document.querySelector('figcaption small'));
        const back = light(s.backgroundColor); const ratio = (c) => { const l = light(c);
          return (Math.max(l, back) + 0.05) / (Math.min(l, back) + 0.05); };
        return [back, ratio(s.color), ratio(m.color)]; })()"""
    back, text, muted = page.run(luminance)
    assert (back > 0.5) == (scheme == "light") and text > 7 and muted > 4.5, "WCAG 2.1: AAA for text, AA for notes"
    page.tab.keyboard.press("t")
    page.tab.keyboard.press("t")
    assert page.run("document.documentElement.dataset.theme") == "dark" and page.run(luminance)[0] < 0.5
    page.close()


def test_a_phone_is_wide_enough(make_run: Make, chromium: Any) -> None:
    page = Page(chromium, has_touch=True, is_mobile=True)
    page.tab.set_viewport_size({"width": 360, "height": 740})
    page.open(written(make_run(steps=4, tokens=60), make_run("other_run_with_a_long_name")))
    for tab in ("curves", "waste", "timeline", "rollouts"):
        page.show(tab)
        page.tab.wait_for_timeout(50)
        assert page.run("document.documentElement.scrollWidth") <= 360, tab
    page.tab.tap(".row")
    page.tab.wait_for_selector(".card")
    box = page.tab.locator(".detail").bounding_box()
    assert box and (box["x"], box["width"]) == (0, 360), "a group fills the screen"
    page.tab.tap(".back")
    assert page.run("document.querySelector('.detail').hidden")
    page.close()


# --- rollouts are not trusted -----------------------------------------------------------------------


def test_rollouts_inject_no_script(make_run: Make, page: Page) -> None:
    run = make_run(hostile=HOSTILE, prompt=lambda draw: [{"role": HOSTILE, "content": HOSTILE}], steps=4)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (run / "metrics.jsonl").write_text("".join(json.dumps({**line, HOSTILE: 1.5}) + "\n" for line in lines))
    (run / "logs").mkdir()
    (run / "logs" / "launcher.log").write_text(f"2026-01-02 03:04:05,678 INFO olmorl: {HOSTILE}\n")
    page.open(written(run))
    for tab in ("curves", "waste", "timeline", "rollouts"):
        page.show(tab)
        page.tab.wait_for_timeout(100)
        assert page.run(f"document.getElementById('{tab}').textContent.includes('pwned')"), (
            f"{tab}: it is shown as text"
        )
    page.tab.click(".row")
    page.tab.wait_for_selector(".card")
    for mode in ("version", "logprob", "none"):
        page.tab.select_option("#mode", mode)
        assert HOSTILE[:40] in page.text(".detail")
    page.tab.fill("#search", "onerror")
    page.until("olmorlReport.built.rollouts.search.found !== null")
    assert page.run("globalThis.pwned") is None
    assert page.run("document.querySelectorAll('img, main script').length") == 0


def test_the_policy_stops_a_script_that_would_get_in(make_run: Make, chromium: Any) -> None:
    page = Page(chromium)
    page.open(written(make_run(steps=1)))
    page.run(
        """() => { const s = document.createElement('script'); s.textContent = 'globalThis.pwned = 1';
          document.body.append(s);
          const i = document.createElement('div'); i.innerHTML = '<img src=x onerror="globalThis.pwned = 1">';
          document.body.append(i); }"""
    )
    page.tab.wait_for_timeout(200)
    assert page.run("globalThis.pwned") is None
    assert any("Content Security Policy" in error for error in page.errors)
    page.errors.clear()
    page.close()


# --- live -----------------------------------------------------------------------------------------


def test_a_served_report_follows_the_run(make_run: Make, page: Page) -> None:
    run = make_run(steps=3)
    server = ReportServer(LiveReport([RunReader(run, 1 << 30)]))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        page.open(server.url)
        assert "token" not in page.run("location.href") and page.text("#live") == "live"
        page.show("rollouts")
        page.tab.click("input[name=outcome][value='0']")
        page.tab.click(".row >> nth=1")
        page.tab.wait_for_selector(".card")
        opened = page.text(".detail h2")
        assert page.text(".summary") == "36 rollouts in 9 groups"
        line = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({**line, "step": 4, "reward_mean": 0.75}) + "\n")
        first = sorted((run / "rollouts").iterdir())[0]
        rollout_files.copy(first, run / "rollouts" / "step_000004.1.partial.jsonl.zst")
        page.until("document.querySelector('.summary').textContent === '48 rollouts in 12 groups'")
        assert page.text(".detail h2") == opened, "the open group stays"
        assert page.run("document.querySelector('input[name=outcome][value=\"0\"]').checked"), "so does the filter"
        page.show("curves")
        assert page.run("olmorlReport.runs[0].lines.reward_mean[3]") == 0.75
    finally:
        server.stop()
        thread.join()

"""The page in a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from prlc.report import Chart, Outcome, Verdict, write_page

from .builders import make_run, make_series

NASTY = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1> <b>&amp;</b>"
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
         "--disable-component-update", "--disable-dev-shm-usage"]  # fmt: skip

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with everything: seeds, an unfinished run, a nasty label, two charts, verdicts."""
    seeds = make_series(make_run(loss=1.0), make_run(seed=1, loss=2.0))
    curves = (
        make_series(make_run("nsgd", loss=4.0)),
        seeds,
        make_series(make_run("pr:0.5", finished=False, rows=4), label=NASTY),
    )
    bare = make_series(make_run("asgd", accuracy=False, loss=2.0))
    verdict = Verdict("fig1", "A claim " * 12, "logistic, lr 0.1", "measured " * 9, Outcome.FAILS)
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(
        path,
        "Everything at once",
        [Chart("first", curves, "A note."), Chart("second", (seeds, bare))],
        lead="What this is about.",
        verdicts=[verdict],
        command="prlc compare --out " + "x" * 200,
    )
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        names = ("chromium", "chromium-browser", "google-chrome")
        found = next(filter(None, map(shutil.which, names)), None)
        if found is None and not Path(playwright.chromium.executable_path).exists():
            pytest.skip("there is no Chromium: install it, or `playwright install chromium`")
        started = playwright.chromium.launch(executable_path=found, args=QUIET)
        yield started
        started.close()


@pytest.fixture
def opened(browser: Browser, file: Path) -> Iterator[Open]:
    """Open the page; afterwards, nothing may have gone wrong and nothing else been asked for."""
    troubles: list[str] = []
    pages: list[Page] = []

    def visit(width: int = 1280, **settings: Any) -> Page:
        page = browser.new_page(viewport={"width": width, "height": 900}, **settings)
        pages.append(page)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda message: troubles.append(message.text))
        page.on("request", lambda request: troubles.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_function("() => document.querySelectorAll('.plot .main-svg').length >= 2")
        return page

    yield visit
    for page in pages:
        page.close()
    assert troubles == [file.as_uri()] * len(pages)


def _trace(page: Page, name: str, plot: int = 0) -> Any:
    """A curve as it is drawn, with the names of its axes."""
    return page.evaluate(
        """([plot, name]) => {
            const { data, layout } = document.getElementById(`plot-${plot}`);
            const { x, y, visible } = data.find((trace) => trace.name === name);
            return { x, y, visible, across: layout.xaxis.title.text, up: layout.yaxis.title.text,
                     scale: layout.yaxis.type };
        }""",
        [plot, name],
    )


def _choose(page: Page, words: str) -> None:
    page.locator(".switch label", has_text=words).click()


def test_the_axis_switch_changes_every_curve_and_its_axis(opened: Open) -> None:
    page = opened()
    expected = {
        "steps": ([0, 10, 20, 30, 40, 50], "steps"),
        "epochs": ([0, 0.5, 1, 1.5, 2, 2.5], "epochs"),
        "pulls": ([0, 10, 20, 30, 40, 50], "pulls per worker"),
        "bytes": ([0, 8, 16, 24, 32, 40], "traffic up and down (MB)"),
        "time": ([0, 1, 2, 3, 4, 5], "simulated time (minutes)"),
    }
    for words, (x, title) in expected.items():
        _choose(page, words)
        nsgd = _trace(page, "NSGD")
        assert (nsgd["x"], nsgd["across"]) == (x, title)
        assert _trace(page, "ASGD", plot=1)["across"] == title
        assert page.locator(".plot .xtitle").first.text_content() == title


def test_the_measure_and_the_scale_can_be_switched(opened: Open) -> None:
    page = opened()
    assert _trace(page, "NSGD")["scale"] == "log"
    _choose(page, "linear")
    assert _trace(page, "NSGD")["scale"] == _trace(page, "ASGD", 1)["scale"] == "linear"
    _choose(page, "test accuracy")
    accuracy = _trace(page, "NSGD")
    assert accuracy["y"] == [0.5, 0.75, 0.875, 0.9375, 0.96875, 0.984375]
    assert (accuracy["up"], accuracy["scale"]) == ("test accuracy", "linear")
    assert page.evaluate("document.getElementById('plot-1').data.map((t) => t.name)") == [
        None,
        "PRLC r=0.1",
    ]  # the band and the curve of the one that measured it
    _choose(page, "log")
    assert page.evaluate("document.getElementById('plot-0')._fullLayout.yaxis.type") == "log"
    _choose(page, "training loss")  # which keeps the scale it was given
    assert (_trace(page, "NSGD")["y"][0], _trace(page, "NSGD")["scale"]) == (4.0, "linear")


def test_the_table_sorts_by_numbers_both_ways_and_by_keyboard(opened: Open) -> None:
    page = opened()
    table = page.locator(".results").first

    def column(number: int) -> list[str]:
        cells = table.locator(f"tbody tr > :nth-child({number})")
        return [text.strip() for text in cells.all_inner_texts()]

    heading = table.get_by_role("button", name="train loss")
    heading.click()
    assert [text.split()[0] for text in column(2)] == ["0.0469", "0.1250", "0.1250"]
    heading.focus()
    page.keyboard.press("Enter")
    assert [text.split()[0] for text in column(2)] == ["0.1250", "0.1250", "0.0469"]
    head = table.locator("thead th")
    assert head.nth(1).get_attribute("aria-sort") == "descending"
    table.get_by_role("button", name="pulls per worker").click()
    assert head.nth(1).get_attribute("aria-sort") is None
    assert [text.split()[0] for text in column(4)] == ["5.5", "15.0", "50.0"]  # not as text
    table.get_by_role("button", name="method").click()
    assert column(1)[1:] == ["NSGD", "PRLC r=0.1"]


def test_a_curve_hides_by_its_legend_in_every_chart(opened: Open) -> None:
    page = opened()
    entry = page.locator(".legend").first.get_by_role("button", name="PRLC r=0.1")
    drawn = page.locator("#plot-0 .scatterlayer .trace")
    before = drawn.count()
    entry.click()
    assert drawn.count() == before - 2  # the curve and its band
    assert _trace(page, "PRLC r=0.1", plot=1)["visible"] is False
    assert _trace(page, "NSGD")["visible"] is True
    assert entry.get_attribute("aria-pressed") == "false"
    entry.press("Enter")
    assert drawn.count() == before
    assert entry.get_attribute("aria-pressed") == "true"


def test_a_point_tells_all_about_itself_and_labels_are_harmless(opened: Open) -> None:
    page = opened()
    for number, words in (
        (2, "PRLC r=0.1 training loss 0.7500 0.5000 – 1.000 over 2 seeds step 10, epoch 0.5 "
            "1.5 pulls per worker 4.4 MB up and down 1 min simulated"),
        (3, f"{NASTY} training loss 0.5000 step 10"),
    ):  # fmt: skip
        point = {"curveNumber": number, "pointNumber": 1}
        page.evaluate("point => Plotly.Fx.hover('plot-0', [point])", point)
        page.locator("#plot-0 .hovertext", has_text=words[:10]).wait_for()
        lines = page.locator("#plot-0 .hovertext tspan.line").all_text_contents()
        assert " ".join(lines).startswith(words)
    assert page.locator(".legend button").nth(2).inner_text() == NASTY
    assert page.evaluate("window.hacked") is None


def test_the_command_can_be_copied(opened: Open) -> None:
    page = opened(permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.locator(".command code").text_content()


def test_it_fits_a_phone_and_follows_the_colours_of_the_system(opened: Open) -> None:
    page = opened(390, has_touch=True)
    page.locator("summary").click()
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(
            "() => document.querySelector('.plot').clientWidth === "
            "document.querySelector('.plot .main-svg').clientWidth"
        )
        assert page.evaluate("document.documentElement.scrollWidth") == width
        plot = page.locator(".plot .main-svg").first.bounding_box()
        assert plot is not None
        assert 0 < plot["x"] < plot["x"] + plot["width"] <= width
        assert plot["width"] > 0.8 * width
    for scheme, ink in (("dark", "#f4f4f4"), ("light", "#000000")):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        drawn = "document.getElementById('plot-0').data[0].line.color"
        page.wait_for_function(f"() => {drawn} === '{ink}'")

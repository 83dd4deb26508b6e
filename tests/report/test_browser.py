"""Pages in a real browser: Debian's chromium, driven by Playwright. Skipped without either."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from dcfl.evaluation import ema
from dcfl.report import write_report
from dcfl.report.charts import plot, series
from dcfl.report.document import Page, Picture, Section, Table
from dcfl.report.watch import watching
from tests.comparisons.small_sweeps import hand_made_sweep
from tests.report.folders import TEN, row, write_run

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt install chromium"),
    pytest.mark.xdist_group("browser"),
]

HOLDER = "xpath=ancestor::*[contains(@class, 'holder')][1]"
SCALES = """figure => ["main", "lead"].map(one => {
    const { min, max } = figure.dcflChart[one].plot.scales.x;
    return [min, max];
})"""
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<img src=x onerror=alert(1)>"
CURVES = {
    "fedavg": [[10.0, 30.0, 40.0, 50.0, 52.0], [12.0, 28.0, 44.0, 46.0, 54.0]],
    "dcfl-pw": [[11.0, 33.0, 47.0, 52.0, 60.0], [13.0, 30.0, 48.0, 50.0, 58.0]],
}
EMA = {name: [ema(curve) for curve in curves] for name, curves in CURVES.items()}


@dataclass
class Opened:
    """A page, and what it said and asked for."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def figure(self, title: str) -> Any:
        return self.page.locator("figure", has=self.page.locator("h3", has_text=title))

    def hover(self, place: Any, across: float = 0.99, down: float = 0.5) -> str:
        """The text beside the pointer, at this share of the place's width and height."""
        place.scroll_into_view_if_needed()
        box = place.bounding_box()
        self.page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
        return str(place.locator(f"{HOLDER}/*[@role='status']").inner_text())


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        try:
            started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"chromium does not start: {error}")
        yield started
        started.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods with two seeds each; the first class has a hostile name."""
    folder = tmp_path_factory.mktemp("browser") / "runs"
    counts = np.full((4, 10), 5)
    counts[2] = [70, *[0] * 9]
    clients = [
        {"round": 5, "client": 2, "outcome": "ok", "reason": "", "own_accuracy": 42.0},
        {"round": 4, "client": 1, "outcome": "failed", "reason": HOSTILE},
    ]
    for method, curves in CURVES.items():
        for seed, accuracies in enumerate(curves):
            write_run(
                folder / f"{method}-{seed}",
                accuracies,
                method=method,
                seed=seed,
                class_names=(HOSTILE, *TEN[1:]),
                counts=counts,
                clients=clients,
            )
    return write_report(folder)


@pytest.fixture
def opened(browser: Any, report: Path) -> Iterator[Opened]:
    """A window of a desktop, and the page in it, which has to stay quiet."""
    opened = open_page(browser, report.as_uri())
    yield opened
    assert opened.said == []
    assert opened.asked == [report.as_uri()]
    opened.page.context.close()


def open_page(browser: Any, address: str, **options: Any) -> Opened:
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
    opened = Opened(context.new_page())
    opened.page.on("console", lambda message: opened.said.append(message.text))
    opened.page.on("pageerror", lambda error: opened.said.append(str(error)))
    opened.page.on("dialog", lambda dialog: opened.said.append(f"dialog {dialog.message}"))
    opened.page.on(
        "request",
        lambda request: request.url.startswith("data:") or opened.asked.append(request.url),
    )
    opened.page.goto(address)
    return opened


def test_values_beside_the_pointer_are_the_recorded_ones(opened: Opened) -> None:
    figure = opened.figure("Accuracy over rounds")
    said = opened.hover(figure.locator(".u-over").first)
    assert said.startswith("round 5")
    for method, values in EMA.items():
        low, high = sorted(values)
        assert f"{np.mean(values):.2f} ({low:.2f} to {high:.2f})" in said, method
    leads = [
        ours - theirs for ours, theirs in zip(*(EMA[m] for m in ("dcfl-pw", "fedavg")), strict=True)
    ]
    assert f"+{np.mean(leads):.2f}" in opened.hover(figure.locator(".u-over").nth(1))


def test_the_legend_hides_a_method_and_shows_it_again(opened: Opened) -> None:
    figure = opened.figure("Accuracy over rounds")
    button = figure.get_by_role("button", name="dcfl-pw")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    said = opened.hover(figure.locator(".u-over").first)
    assert "fedavg" in said
    assert "dcfl-pw" not in said
    button.press("Enter")
    assert "dcfl-pw" in opened.hover(figure.locator(".u-over").first)


def test_a_drag_zooms_and_a_double_click_goes_back(opened: Opened) -> None:
    figure = opened.figure("Accuracy over rounds")
    area, reset = figure.locator(".u-over").first, figure.get_by_role("button", name="Reset zoom")
    assert figure.evaluate(SCALES) == [[1, 5], [1, 5]]
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    opened.page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 60)
    opened.page.mouse.down()
    opened.page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 70, steps=4)
    opened.page.mouse.up()
    both = figure.evaluate(SCALES)
    assert both[0] == pytest.approx([3, 4], abs=0.1)
    assert both[1] == pytest.approx([3, 4], abs=0.1)
    assert reset.is_visible()
    area.dblclick()
    assert figure.evaluate(SCALES)[0] == [1, 5]
    assert not reset.is_visible()


def test_curves_over_megabytes_and_seconds_and_less_smooth(opened: Opened) -> None:
    figure = opened.figure("Accuracy over rounds")
    area = figure.locator(".u-over").first
    figure.locator("select").nth(1).select_option("sent")
    assert re.match(r"14\.8\d* MB\n", opened.hover(area))  # of 3 to 15
    figure.locator("select").nth(1).select_option("seconds")
    assert " s\n" in opened.hover(area)
    figure.locator("input").fill("0")
    assert f"{np.mean([52.0, 54.0]):.2f}" in opened.hover(area)
    figure.locator("select").first.select_option("client_accuracy")
    assert "accuracy of clients, each on its own" in figure.locator("select").first.inner_text()


def test_smoothing_is_the_moving_average_of_the_runs(opened: Opened) -> None:
    values = np.random.default_rng(0).uniform(0, 100, 60).tolist()
    rounds = [*range(3, 180, 3), 181]  # every third, and the last
    smooth = "([values, rounds]) => dcflCurves.smoothed(values, rounds, 0.9)"
    made = opened.page.evaluate(smooth, [values, rounds])
    wanted = [ema(values[:last], rounds=rounds[:last]) for last in range(1, 61)]
    assert made == pytest.approx(wanted)
    holes = opened.page.evaluate(smooth, [[None, 1, None, 3], [1, 2, 3, 4]])
    assert holes == [None, 1, None, pytest.approx(ema([1.0, 3.0], rounds=[2, 4]))]
    assert opened.page.evaluate("dcflCurves.smoothed([1, null, 3], [0, 1, 2], 0)") == [1, None, 3]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_chart_can_be_downloaded_as_svg(
    scheme: str, browser: Any, report: Path, tmp_path: Path
) -> None:
    opened = open_page(browser, report.as_uri(), color_scheme=scheme)
    buttons = opened.page.get_by_role("button", name="Download this chart as SVG").all()
    assert len(buttons) == opened.page.locator("figure[data-chart]").count()
    files = {}
    for button in buttons:
        with opened.page.expect_download() as download:
            button.click()
        download.value.save_as(tmp_path / "chart.svg")
        text = (tmp_path / "chart.svg").read_text("utf-8")
        files[download.value.suggested_filename] = ElementTree.fromstring(text)
        assert 'd="L' not in text  # a path begins somewhere
    drawn = files["accuracy-over-rounds.svg"]
    words = [one.text for one in drawn.iter(f"{SVG}text")]
    assert {"accuracy (%)", "round", "fedavg", "dcfl-pw"} <= {*words}
    dashed = [one for one in drawn.iter(f"{SVG}path") if one.get("stroke-dasharray")]
    assert {one.get("stroke") for one in dashed} == {"rgb(213,94,0)"}  # the colour on white
    matrix = list(files.values())[-1]
    assert HOSTILE[:8] in " ".join(one.text or "" for one in matrix.iter(f"{SVG}text"))
    assert opened.said == []
    opened.page.context.close()


def test_tables_sort_by_click_and_by_key(opened: Opened) -> None:
    table = opened.page.locator("table").first
    names = table.locator("tbody th")
    assert names.all_inner_texts() == ["fedavg", "dcfl-pw"]
    head = table.get_by_role("button", name="EMA, %", exact=True)
    for order, expected in (("descending", "dcfl-pw"), ("ascending", "fedavg")):
        head.press("Enter") if order == "ascending" else head.click()
        assert table.locator(f"th[aria-sort={order}]").count() == 1
        assert names.first.inner_text() == expected
    head.click()
    assert table.locator("th[aria-sort]").count() == 0
    numbers = {
        "+3.00 ± 1.41": 3,
        "−2.5": -2.5,
        "1,234": 1234,
        "12 of 24": 12,
        "x": None,
        "1e-3": 0.001,
    }
    for text, number in numbers.items():
        assert opened.page.evaluate("text => dcflPage.leadingNumber(text)", text) == number


def test_a_hostile_name_is_shown_and_does_nothing(opened: Opened) -> None:
    figure = opened.page.locator("figure", has=opened.page.locator("canvas")).last
    said = opened.hover(figure.locator("canvas"), across=0.33, down=0.35)
    assert said.startswith("client 2, class ")
    figure.locator(".holder").first.focus()
    for _ in TEN:
        opened.page.keyboard.press("ArrowUp")
    assert HOSTILE in figure.locator(".tip").inner_text()
    assert opened.page.locator("img[src=x]").count() == 0
    assert HOSTILE in opened.page.locator("table").last.inner_text()


def test_dark_and_light(browser: Any, report: Path) -> None:
    opened = open_page(browser, report.as_uri(), color_scheme="dark")
    shade = "getComputedStyle(document.body).backgroundColor"
    assert opened.page.evaluate(shade) == "rgb(20, 24, 28)"
    opened.page.get_by_role("button", name="Show on white").click()
    assert opened.page.evaluate(shade) == "rgb(255, 255, 255)"
    opened.page.emulate_media(color_scheme="light")
    opened.page.get_by_role("button", name="Show on black").click()
    assert opened.page.evaluate(shade) == "rgb(20, 24, 28)"
    opened.page.context.close()


def test_a_phone_does_not_scroll_sideways(browser: Any, report: Path, tmp_path: Path) -> None:
    wide = Table([f"column {n}" for n in range(14)], [["x" * 30, *["1,234.56"] * 13]] * 2)
    other = tmp_path / "other.html"
    section = Section("s", tables=[wide])
    other.write_text(Page("t" * 80, [("a", "b" * 90)], "h", [section]).html)
    for path in (report, other):
        opened = open_page(browser, path.as_uri(), viewport={"width": 390, "height": 844})
        assert opened.page.evaluate("document.documentElement.scrollWidth") == 390
        opened.page.locator("table").first.get_by_role("button").last.click()
        assert opened.page.locator("th[aria-sort]").count() == 1
        opened.page.context.close()


def test_the_page_of_a_sweep(browser: Any, tmp_path: Path) -> None:
    settings = ["training.lr=0.1,0.2", "method.mu=0.5,1,2,3,4,5,6"]
    scores = [[30.0 + number] for number in range(14)]
    page = hand_made_sweep(tmp_path, settings, scores).written().report
    for width in (1200, 390):
        opened = open_page(browser, page.as_uri(), viewport={"width": width, "height": 900})
        heat = opened.figure("Accuracy over training.lr and method.mu").locator("canvas")
        said = opened.hover(heat, across=65 / heat.bounding_box()["width"], down=0.1)
        assert said == "method.mu 0.5, training.lr 0.1\naccuracy, %\n30.00"
        assert opened.page.evaluate("document.documentElement.scrollWidth") == width
        assert opened.said == []
        opened.page.context.close()


def test_names_below_an_axis_keep_to_their_room(browser: Any, tmp_path: Path) -> None:
    names = [f"a rather long name of column {n}" for n in range(6)]
    line = series("a", range(6), range(6), 0)
    chart = plot({"label": "", "names": names}, {"label": "y"}, [{"series": [line]}])
    picture = Picture("Six", "six", "six", chart)
    path = tmp_path / "names.html"
    path.write_text(Page("t", [], "h", [Section("s", pictures=[picture])]).html)
    opened = open_page(browser, path.as_uri(), viewport={"width": 390, "height": 800})
    shown = opened.page.evaluate(
        "() => { const { plot } = document.querySelector('figure').dcflChart.plots[0];"
        " return plot.axes[0]._values; }"
    )
    assert len(shown) == 6
    assert all(name.startswith("a ") and name.endswith("…") for name in shown)
    opened.page.context.close()


def test_without_scripts_the_tables_have_the_numbers(browser: Any, report: Path) -> None:
    opened = open_page(browser, report.as_uri(), java_script_enabled=False)
    assert opened.page.get_by_text("Charts need scripts, which are off here").is_visible()
    assert opened.page.locator("table").first.is_visible()
    assert opened.said == []
    opened.page.context.close()


def test_on_paper_charts_are_on_white_and_as_wide_as_it(browser: Any, report: Path) -> None:
    opened = open_page(browser, report.as_uri(), color_scheme="dark")
    ink = "getComputedStyle(document.body).color"
    for event, expected in (
        ("beforeprint", "rgb(34, 39, 43)"),
        ("afterprint", "rgb(228, 232, 235)"),
    ):
        opened.page.evaluate(f"dispatchEvent(new Event('{event}'))")
        assert opened.page.evaluate(ink) == expected
    opened.page.emulate_media(media="print")
    shade = "getComputedStyle(document.body).backgroundColor"
    assert opened.page.evaluate(shade) == "rgb(255, 255, 255)"
    assert not opened.page.locator(".controls").first.is_visible()
    for canvas in opened.page.locator("canvas").all():
        assert canvas.bounding_box()["width"] <= 1200
        assert canvas.bounding_box()["height"] > 60
    assert opened.page.pdf()[:4] == b"%PDF"
    assert opened.said == []
    opened.page.context.close()


@pytest.mark.slow
def test_the_page_of_a_watch_follows_and_keeps_what_the_reader_chose(
    browser: Any, tmp_path: Path
) -> None:
    with watching([tmp_path / "later"]) as server:
        opened = open_page(browser, server.address)
        assert "There is no run" in opened.page.locator(".headline").inner_text()
        for method in CURVES:
            write_run(
                tmp_path / "later" / method, CURVES[method][0][:2], method=method, finished=False
            )
        figure = opened.figure("Accuracy over rounds")
        figure.get_by_role("button", name="dcfl-pw").click()
        with (tmp_path / "later" / "fedavg" / "rounds.jsonl").open("a") as log:
            log.write(json.dumps(row(3, CURVES["fedavg"][0])) + "\n" + '{"round": 4, "acc')
        opened.page.get_by_text("fedavg is unfinished: 3 of 2").wait_for(state="attached")
        assert figure.get_by_role("button", name="dcfl-pw").get_attribute("aria-pressed") == "false"
        assert opened.hover(figure.locator(".u-over").first).startswith("round 3")
        assert opened.said == []
        assert {address.partition("?")[0] for address in opened.asked} == {
            server.address,
            f"{server.address}state",
        }
    opened.page.get_by_text("dcfl watch does not answer").wait_for()
    opened.page.context.close()

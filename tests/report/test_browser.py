"""The page in a real browser. Needs Chromium, its driver and selenium: make browser-test."""

from __future__ import annotations

import base64
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tacit.jobs.held_out import Thresholds, read_held_out
from tacit.jobs.quality import wilson
from tacit.report import page, read_material, write_report

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: make browser-test")
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="no Chromium with its driver here; on Debian: apt-get install chromium chromium-driver",
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1200,900",
)
Driver = Any


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield found
    finally:
        found.quit()


@pytest.fixture(scope="module")
def file(hostile_run: Path, dense_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "report.html"
    write_report([hostile_run, dense_run], out)
    return out


@pytest.fixture
def opened(driver: Driver, file: Path) -> Driver:
    """The page, freshly loaded on a desktop with a light scheme."""
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    media(driver, "light")
    for kind in ("browser", "performance"):
        driver.get_log(kind)
    driver.get(file.as_uri())
    return driver


def media(driver: Driver, scheme: str, kind: str = "") -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": kind, "features": features})


def phone(driver: Driver, width: int) -> None:
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 2, "mobile": True},
    )


def requests(driver: Driver) -> list[str]:
    """The addresses that the page asked for."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


def test_it_opens_without_a_complaint_and_asks_for_nothing(opened: Driver, file: Path) -> None:
    asked = [url for url in requests(opened) if not url.startswith("data:")]
    assert asked == [file.as_uri()]
    assert opened.get_log("browser") == []
    assert opened.execute_script("return window.hacked") is None
    assert opened.execute_script("return document.scripts.length") == 1


def test_served_over_http_only_the_page_is_fetched(driver: Driver, file: Path) -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200 if self.path == "/report.html" else 404)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            if self.path == "/report.html":
                self.wfile.write(file.read_bytes())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        driver.get_log("browser")
        driver.get(f"http://127.0.0.1:{server.server_port}/report.html")
        driver.find_element(By.CSS_SELECTOR, "footer")
        assert asked == ["/report.html"]
        assert driver.get_log("browser") == []
    finally:
        server.shutdown()
        server.server_close()


def test_a_script_that_slipped_in_would_not_run(driver: Driver, file: Path, tmp_path: Path) -> None:
    """The second line of defence: the policy names the one script that may run."""
    broken = tmp_path / "broken.html"
    attack = (
        '<script>window.hacked = 1</script><img src="https://example.org/x.png" onerror="window.hacked = 2">'
    )
    broken.write_text(file.read_text().replace("<main", attack + "<main", 1))
    driver.get_log("browser")
    driver.get(broken.as_uri())
    assert driver.execute_script("return window.hacked") is None
    complaints = " ".join(entry["message"] for entry in driver.get_log("browser"))
    assert "Content Security Policy" in complaints


def test_every_figure_is_drawn(opened: Driver) -> None:
    sizes = opened.execute_script(
        "return [...document.querySelectorAll('svg[role=img]')].map((svg) => {"
        " const box = svg.getBoundingClientRect();"
        " const shapes = [...svg.querySelectorAll('path, circle, polygon, line')];"
        " return [box.width, box.height, shapes.some((s) => s.getBoundingClientRect().width > 20)]; })"
    )
    assert len(sizes) >= 12
    assert all(width > 200 and height > 30 and drawn for width, height, drawn in sizes)
    stroke = opened.execute_script(
        "return getComputedStyle(document.querySelector('.line')).stroke !== 'none' &&"
        " getComputedStyle(document.querySelector('.line')).fill === 'none'"
    )
    assert stroke, "the style applies under the policy"


@pytest.mark.parametrize("width", [320, 375, 768, 1200])
def test_nothing_sticks_out_at_the_side(opened: Driver, width: int) -> None:
    phone(opened, width)
    opened.execute_script("for (const part of document.querySelectorAll('details')) part.open = true")
    assert opened.execute_script("return document.documentElement.scrollWidth") <= width
    out = opened.execute_script(
        "return [...document.querySelectorAll('main *')].filter((e) => !e.closest('.scroll, .unseen, svg') &&"
        " e.getBoundingClientRect().right > innerWidth + 0.5).map((e) => e.tagName + '.' + e.className)"
    )
    assert out == []


def test_text_in_figures_is_readable_on_a_phone(opened: Driver) -> None:
    phone(opened, 360)
    sizes = opened.execute_script(
        "return [...document.querySelectorAll('.plot svg[role=img] text')].map((text) => {"
        " const svg = text.ownerSVGElement;"
        " return parseFloat(getComputedStyle(text).fontSize) * svg.getBoundingClientRect().width"
        " / svg.viewBox.baseVal.width; })"
    )
    assert min(sizes) >= 9.5


def lightness(driver: Driver, script: str = "getComputedStyle(document.body).backgroundColor") -> int:
    """The mean of red, green and blue that a colour really has on the screen."""
    return int(
        driver.execute_script(
            "const canvas = document.createElement('canvas'); canvas.width = canvas.height = 1;"
            f"const pen = canvas.getContext('2d'); pen.fillStyle = {script}; pen.fillRect(0, 0, 1, 1);"
            "const [r, g, b] = pen.getImageData(0, 0, 1, 1).data; return Math.round((r + g + b) / 3);"
        )
    )


def test_light_and_dark_by_system_and_by_choice(opened: Driver) -> None:
    assert lightness(opened) > 230
    media(opened, "dark")
    assert lightness(opened) < 40
    assert lightness(opened, "getComputedStyle(document.body).color") > 200
    buttons = {b.text: b for b in opened.find_elements(By.CSS_SELECTOR, ".themes button")}
    assert set(buttons) == {"Auto", "Light", "Dark"}
    buttons["Light"].click()
    assert lightness(opened) > 230
    assert buttons["Light"].get_attribute("aria-pressed") == "true"
    assert buttons["Auto"].get_attribute("aria-pressed") == "false"
    media(opened, "light")
    buttons["Dark"].send_keys(Keys.ENTER)
    assert lightness(opened) < 40
    media(opened, "light", "print")
    assert lightness(opened) > 250, "paper is white whatever was chosen"


def contrast(driver: Driver, selector: str) -> float:
    """Contrast of an element's text to the first opaque background behind it, after WCAG."""
    return float(
        driver.execute_script(
            "const canvas = document.createElement('canvas'); canvas.width = canvas.height = 1;"
            "const pen = canvas.getContext('2d', {willReadFrequently: true});"
            "const read = (colour) => { pen.clearRect(0, 0, 1, 1); pen.fillStyle = colour;"
            " pen.fillRect(0, 0, 1, 1); return [...pen.getImageData(0, 0, 1, 1).data]; };"
            "const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255;"
            " return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });"
            " return 0.2126 * r + 0.7152 * g + 0.0722 * b; };"
            "let lowest = 99; for (const element of document.querySelectorAll(arguments[0])) {"
            " const style = getComputedStyle(element);"
            " const ink = read(element.closest('svg') ? style.fill : style.color); let place = element;"
            " let back = [0, 0, 0, 0]; while (back[3] < 255) { back = place ?"
            " read(getComputedStyle(place).backgroundColor) : [255, 255, 255, 255];"
            " place = place && place.parentElement; }"
            " const a = light(ink), b = light(back);"
            " lowest = Math.min(lowest, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)); }"
            "return lowest;",
            selector,
        )
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(opened: Driver, scheme: str) -> None:
    media(opened, scheme)
    for selector in (
        "p",
        "dd",
        "dt",
        "th",
        "td",
        "a",
        "summary",
        ".heat span",
        ".badge",
        ".plot text",
        ".at",
    ):
        assert contrast(opened, selector) >= 4.5, selector


def thresholds(run: Path) -> tuple[Thresholds, int, int]:
    counts = read_held_out(run)
    assert counts is not None
    assert counts.thresholds is not None
    return counts.thresholds, sum(counts.confusion[1]), sum(counts.confusion[0])


def percent(text: str) -> float:
    return float(text.removesuffix(" %"))


def near(share: float) -> Any:
    """The share in percent, as one decimal gives it; JavaScript and Python break ties differently."""
    return pytest.approx(100 * share, abs=0.051)


def test_the_threshold_moves_with_the_keyboard(opened: Driver, hostile_run: Path) -> None:
    by, positives, negatives = thresholds(hostile_run)
    slider = opened.find_element(By.CSS_SELECTOR, ".slider")
    start = by.logits.index(by.used)
    assert int(slider.get_attribute("value")) == start

    def check(at: int) -> None:
        tp, fp = by.true_positives[at], by.false_positives[at]
        figures = {
            part.get_attribute("data-figure"): part.text
            for part in opened.find_elements(By.CSS_SELECTOR, "[data-figure]")
        }
        assert percent(figures["sensitivity"]) == near(tp / positives)
        assert percent(figures["specificity"]) == near((negatives - fp) / negatives)
        if tp + fp:
            assert percent(figures["precision"]) == near(tp / (tp + fp))
        else:
            assert figures["precision"] == "not defined"
        shown = opened.find_element(By.CSS_SELECTOR, '[data-range="sensitivity"]').text
        low, high = shown.removeprefix("95 % interval ").removesuffix(" %").split(" – ")
        assert (percent(low), percent(high)) == tuple(map(near, wilson(tp, positives)))
        cells = {
            part.get_attribute("data-cell"): int(part.find_element(By.CSS_SELECTOR, ".count").text)
            for part in opened.find_elements(By.CSS_SELECTOR, "[data-cell]")
        }
        assert cells == {"tp": tp, "fp": fp, "fn": positives - tp, "tn": negatives - fp}
        assert slider.get_attribute("aria-valuetext") == opened.find_element(By.CSS_SELECTOR, ".at").text

    check(start)
    cut = opened.find_element(By.CSS_SELECTOR, "#run-1-cut")
    before = float(cut.get_attribute("x1"))
    slider.send_keys(Keys.ARROW_RIGHT)
    check(start + 1)
    assert float(cut.get_attribute("x1")) > before
    slider.send_keys(Keys.HOME)
    check(0)
    slider.send_keys(Keys.END)
    check(len(by.logits) - 1)
    reset = opened.find_element(By.CSS_SELECTOR, ".reset")
    reset.click()
    check(start)
    assert float(cut.get_attribute("x1")) == pytest.approx(before, abs=0.1)
    assert not reset.is_enabled()


def test_values_are_read_off_with_keys_and_pointer(opened: Driver) -> None:
    webdriver.ActionChains(opened).move_to_element(opened.find_element(By.TAG_NAME, "h1")).perform()
    figure = opened.find_element(By.CSS_SELECTOR, "#run-1-epsilon")
    canvas = figure.find_element(By.CSS_SELECTOR, ".canvas")
    canvas.send_keys(Keys.END)
    spent = figure.find_elements(By.CSS_SELECTOR, ".now")[1].text
    assert spent == json.loads(canvas.get_attribute("data-plot"))["lines"][1]["points"][-1][3]
    spoken = figure.find_element(By.CSS_SELECTOR, "output").get_attribute("textContent")
    assert f"spent {spent}" in spoken
    assert "charged releases" in figure.find_element(By.CSS_SELECTOR, ".where").text
    canvas.send_keys(Keys.ARROW_LEFT)
    assert figure.find_elements(By.CSS_SELECTOR, ".now")[1].text != spent
    canvas.send_keys(Keys.ESCAPE)
    assert figure.find_elements(By.CSS_SELECTOR, ".where") == []
    webdriver.ActionChains(opened).move_to_element(canvas).perform()
    assert figure.find_element(By.CSS_SELECTOR, ".where").is_displayed()


def test_every_control_is_reached_by_tab(opened: Driver) -> None:
    seen = set()
    for _ in range(120):
        webdriver.ActionChains(opened).send_keys(Keys.TAB).perform()
        seen.add(opened.execute_script("const e = document.activeElement; return e.className || e.tagName"))
    assert {"skip", "slider", "canvas", "scroll", "SUMMARY", "A", "BUTTON"} <= seen


def test_without_its_script_the_page_still_says_everything(driver: Driver, file: Path) -> None:
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        driver.get(file.as_uri())
        shown = driver.find_element(By.TAG_NAME, "body").text
        assert "Verified, not for release" in shown
        assert "Sensitivity" in shown
        assert not driver.find_element(By.CSS_SELECTOR, ".control").is_displayed()
        assert not driver.find_element(By.CSS_SELECTOR, ".themes").is_displayed()
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_it_prints(opened: Driver) -> None:
    printed = opened.execute_cdp_cmd("Page.printToPDF", {"printBackground": True, "preferCSSPageSize": True})
    document = base64.b64decode(printed["data"])
    assert document.startswith(b"%PDF")
    media(opened, "light", "print")
    for selector in (".themes", "nav", ".control", ".data"):
        assert not opened.find_element(By.CSS_SELECTOR, selector).is_displayed()
    assert opened.find_element(By.CSS_SELECTOR, "#run-1-epsilon svg").is_displayed()


def test_a_page_of_a_comparison_alone(driver: Driver, tmp_path: Path) -> None:
    from report.test_page import COMPARISON

    (tmp_path / "comparison.json").write_text(json.dumps(COMPARISON))
    out = tmp_path / "r.html"
    out.write_text(page(read_material([tmp_path])))
    driver.get_log("browser")
    driver.get(out.as_uri())
    assert driver.get_log("browser") == []
    assert driver.execute_script("return window.hacked") is None
    assert driver.find_element(By.CSS_SELECTOR, "#comparison-1 svg[role=img]").size["width"] > 200

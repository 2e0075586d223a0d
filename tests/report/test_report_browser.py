"""The page of `weightmap report` in a real browser: `make browser-test`, which needs chromium and chromedriver."""

import os
import shutil
import time

import numpy as np
import pytest
from tests.support import HANG

import weightmap as wm
from weightmap.report import write_report

pytestmark = pytest.mark.skipif("WEIGHTMAP_BROWSER" not in os.environ, reason="make browser-test runs these")
HOSTILE = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
MANY = 10_000


@pytest.fixture(scope="module", params=["wide light", "narrow dark"])
def browser(request):
    """A headless Chromium without a network."""
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    narrow, dark = (request.param == "narrow dark",) * 2
    size = {"width": 390 if narrow else 1280, "height": 900, "deviceScaleFactor": 1, "mobile": narrow}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    driver.dark = dark
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Pages about a small model with hostile names, about two of them, and about one of 10,000 tensors."""
    folder, rng = tmp_path_factory.mktemp("pages"), np.random.default_rng(0)
    small = {f"layer.{i}.{kind}": rng.standard_normal((4, 256), np.float32) for i in range(3) for kind in "ab"}
    small |= {f"{HOSTILE}.{i}.w": rng.standard_normal((2, 32), np.float32) for i in range(2)}
    small |= {"half": np.ones(300, np.float16), "odd": np.array([np.nan, np.inf], np.float32)}
    wm.save(folder / "a.safetensors", small, metadata={HOSTILE: HOSTILE})
    wm.save(folder / "b.safetensors", {name: array * 1.5 for name, array in small.items()} | {HOSTILE: np.ones(2)})
    wm.save(folder / "c.safetensors", small | {"half": np.full(300, 2, np.float16)})
    wm.save(folder / "constant.safetensors", {"half": small["half"]})
    many = {f"layer.{i // 100}.expert.{i % 100}.w": np.full((2, 32), i, np.float32) for i in range(MANY)}
    wm.save(folder / "many.safetensors", many)
    pages = {"one": ("a", None), "two": ("a", "b"), "outside": ("a", "c"), "many": ("many", None)}
    pages["constant"] = ("constant", None)
    for name, (a, b) in pages.items():
        other = None if b is None else folder / f"{b}.safetensors"
        write_report(folder / f"{name}.html", folder / f"{a}.safetensors", other)
    return {name: folder / f"{name}.html" for name in pages}


def until(condition):
    """Wait until a condition holds, at most two minutes; return its value."""
    end = time.monotonic() + HANG
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def visit(browser, page):
    """Open a page and wait until its charts are drawn; forget earlier messages."""
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(page.as_uri())
    until(lambda: browser.execute_script("return document.documentElement.dataset.drawn"))


def names(browser, table):
    """Return the first cells of the rows of a table that are shown."""
    script = "return Array.from(document.getElementById(arguments[0]).tBodies[0].rows, r => r.cells[0].textContent)"
    return browser.execute_script(script, table)


def status(browser, table):
    """Return the stated number of a table's rows."""
    return browser.execute_script("return document.querySelector(arguments[0]).value", f"#{table}-tools output")


@pytest.mark.parametrize(
    ("page", "charts"),
    [
        ("one", ["bytes-map", "ranges", "histogram", "costs", "cost-heat"]),
        ("two", ["heat"]),
        ("many", ["bytes-map", "ranges"]),
        ("constant", ["ranges", "histogram"]),
    ],
)
def test_it_draws_without_errors_and_fetches_nothing(browser, made, page, charts):
    """Every chart has pixels; the console is empty, nothing but the file is asked for, no name of a tensor runs."""
    visit(browser, made[page])
    for chart in charts:
        inked = """
            const canvas = document.querySelector(`#${arguments[0]} canvas`);
            const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            return new Set(new Uint32Array(pixels.buffer)).size;
        """
        assert browser.execute_script(inked, chart) > 3, chart
    assert browser.get_log("browser") == []
    asked = [
        entry["message"] for entry in browser.get_log("performance") if 'Network.requestWillBeSent"' in entry["message"]
    ]
    assert not [message for message in asked if "http://" in message or "https://" in message]
    assert browser.title != "taken"
    assert browser.find_elements("css selector", "main img, main script, main iframe") == []
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (colour == "rgb(255, 255, 255)") is not browser.dark


def test_filters_and_sorts(browser, made):
    """Ten thousand tensors stay usable: a hundred rows at a time, found by name, sorted by number, by keyboard."""
    visit(browser, made["many"])
    assert len(names(browser, "places")) == 100
    assert status(browser, "places") == "10,000 of 10,000 rows, page 1 of 100"
    field = browser.find_element("css selector", "#places-tools input")
    field.send_keys("layer.42.expert.7.")
    assert names(browser, "places") == ["layer.42.expert.7.w"]
    assert status(browser, "places") == "1 of 10,000 rows, page 1 of 1"
    field.send_keys("nothing")
    assert names(browser, "places") == []
    field.clear()
    browser.execute_script("arguments[0].dispatchEvent(new Event('input'))", field)
    head = browser.find_element("css selector", "#values thead th:nth-child(4) button")
    for order, first in (("ascending", "layer.0.expert.0.w"), ("descending", "layer.99.expert.99.w")):
        browser.execute_script("arguments[0].focus()", head)
        browser.switch_to.active_element.send_keys("\ue007")
        assert names(browser, "values")[0] == first
        found = browser.execute_script("return arguments[0].closest('th').getAttribute('aria-sort')", head)
        assert found == order
    browser.execute_script("document.querySelectorAll('#values-tools button')[1].click()")
    assert names(browser, "values")[0] == "layer.98.expert.99.w"


def test_without_scripts_all_tables_are_there(browser, made):
    """Tables have all rows and no tools; a sentence stands where a chart would."""
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(made["one"].as_uri())
        body = browser.find_element("tag name", "body")
        assert "A chart stands here where scripts run" in body.text
        assert len(browser.find_elements("css selector", "#values tbody tr")) == 10
        assert not browser.find_element("id", "values-tools").is_displayed()
        assert browser.find_element("css selector", "#values tbody tr").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_everything_has_a_name_for_screen_readers(browser, made):
    """Charts, tables, fields and buttons have accessible names; scrolling elements take the focus."""
    for page in made.values():
        visit(browser, page)
        nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        wanted = {"figure", "table", "searchbox", "combobox", "button", "link", "meter", "region"} - {"meter"}
        unnamed = [
            node["role"]["value"]
            for node in nodes
            if not node["ignored"] and node["role"]["value"] in wanted and not node.get("name", {}).get("value")
        ]
        assert not unnamed
        scrolls = "return Array.from(document.querySelectorAll('.scroll')).every(e => e.tabIndex === 0)"
        assert browser.execute_script(scrolls)

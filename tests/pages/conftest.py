"""One headless Chromium for all tests of pages, and what they do with it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--disable-dev-shm-usage", "--force-prefers-reduced-motion",
    "--window-size=1500,1100",
)  # fmt: skip
NEEDED = "GRAPHC_NEEDS_CHROMIUM"  # where it is set, a browser that is missing is an error


def missing(what: str) -> NoReturn:
    reason = f"{what} is not installed (Debian: apt-get install chromium chromium-driver)"
    if os.environ.get(NEEDED):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        missing("Chromium" if binary is None else "ChromeDriver")
    try:
        from selenium import webdriver
    except ImportError:
        missing("selenium")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield browser
    browser.quit()


class Page:
    """A page in the browser: how a person sees it and what they do."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser

    def run(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def settle(self) -> None:
        """Wait until what was asked for is drawn."""
        self.browser.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done));"
        )

    def find(self, selector: str) -> Any:
        return self.browser.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        return list(self.browser.find_elements("css selector", selector))

    def text(self, selector: str) -> str:
        return str(self.find(selector).text)

    def click(self, selector: str) -> None:
        self.run("arguments[0].scrollIntoView({block: 'center'})", self.find(selector))
        self.find(selector).click()
        self.settle()

    def press(self, keys: str) -> None:
        self.find("body").send_keys(keys)
        self.settle()

    def point(self, rect: dict[str, float] | None, *, is_click: bool = False) -> None:
        """Move the pointer to the middle of a place on the screen."""
        from selenium.webdriver.common.actions.action_builder import ActionBuilder

        assert rect is not None
        builder = ActionBuilder(self.browser)
        x, y = rect["left"] + rect["width"] / 2, rect["top"] + rect["height"] / 2
        builder.pointer_action.move_to_location(round(x), round(y))
        if is_click:
            builder.pointer_action.click()
        builder.perform()
        self.settle()

    def wheel(self, rect: dict[str, float], by: int) -> None:
        from selenium.webdriver.common.actions.action_builder import ActionBuilder

        builder = ActionBuilder(self.browser)
        x, y = rect["left"] + rect["width"] / 2, rect["top"] + rect["height"] / 2
        builder.wheel_action.scroll(round(x), round(y), 0, by)
        builder.perform()
        self.settle()

    def drag(self, rect: dict[str, float], by_x: int) -> None:
        from selenium.webdriver.common.actions.action_builder import ActionBuilder

        builder = ActionBuilder(self.browser)
        x, y = rect["left"] + rect["width"] / 2, rect["top"] + rect["height"] / 2
        pointer = builder.pointer_action
        pointer.move_to_location(round(x), round(y)).pointer_down()
        pointer.move_to_location(round(x + by_x / 2), round(y))
        pointer.move_to_location(round(x + by_x), round(y)).pointer_up()
        builder.perform()
        self.settle()

    def rect(self, op: str, view: int = 0) -> dict[str, float] | None:
        """Where an op is drawn, brought into the window."""
        self.run("document.querySelector('canvas.plot').scrollIntoView({block: 'start'})")
        found: dict[str, float] | None = self.run(
            "return graphcPage.rectOf(arguments[0], arguments[1])", op, view
        )
        return found

    def sight(self) -> tuple[float, float]:
        first, last = self.run("return [graphcPage.state.from, graphcPage.state.to]")
        return first, last

    def column(self, table: str, number: int) -> list[str]:
        rows = self.all(f"[data-table='{table}'] tbody tr")
        script = "return arguments[0].map((row) => row.children[arguments[1]].textContent)"
        return list(self.run(script, rows, number))

    def errors(self) -> list[str]:
        return [each["message"] for each in self.browser.get_log("browser")]


@pytest.fixture
def opened(chromium: Any) -> Iterator[Callable[[Path], Page]]:
    """Opens a file; in the end nothing may have been complained about, or fetched."""
    page = Page(chromium)

    def open_file(path: Path) -> Page:
        page.errors()
        chromium.get(path.as_uri())
        page.settle()
        return page

    yield open_file
    fetched = page.run("return performance.getEntriesByType('resource').map((each) => each.name)")
    assert [each for each in fetched if not each.startswith("data:")] == []
    assert page.errors() == []

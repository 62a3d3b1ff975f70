"""Chromium without a window, and what tests and screenshots ask of a page."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from tools.running import until

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def missing() -> str:
    """Return what is missing for a browser, "" if nothing is."""
    names = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"not installed: {', '.join(names)}; apt-get install chromium chromium-driver" if names else ""


class Tab:
    """A page in a browser of its own; every request and console message is kept."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self.requests: list[str] = []
        self.console: list[str] = []

    def open(self, address: str) -> None:
        """Load a page and wait until it has drawn a run."""
        self.driver.get(address)
        self.wait(lambda: self.data("ready") == "yes", "the page has drawn a run")

    def script(self, text: str, *arguments: Any) -> Any:
        """Return what a function body returns."""
        return self.driver.execute_script(text, *arguments)

    def data(self, name: str) -> str | None:
        """Return a data attribute of the body."""
        return self.script("return document.body.dataset[arguments[0]] ?? null", name)

    def find(self, selector: str) -> Any:
        """Return the element of a selector."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def click(self, selector: str) -> None:
        """Click on an element, in the middle of the window: the driver does not know of bars at its edges."""
        self.script(
            "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element := self.find(selector)
        )
        element.click()

    def text(self, selector: str) -> str:
        """Return the text of an element, also of one that is scrolled out of view; "" while there is no such element."""
        return str(self.script("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all elements of a selector."""
        return list(
            self.script("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector)
        )

    def number(self, field: str) -> float | None:
        """Return the exact number of a field of the header."""
        value = self.find(f'#numbers [data-field="{field}"]').get_attribute("data-value")
        return float(value) if value else None

    def seek(self, round_index: int) -> None:
        """Replay at a round."""
        move = (
            "const s = document.getElementById('slider'); s.value = arguments[0]; s.dispatchEvent(new Event('input'))"
        )
        self.script(move, round_index)
        self.wait(lambda: self.data("position") == str(round_index), f"the page shows round {round_index}")

    def wait(self, holds: Callable[[], Any], what: str) -> Any:
        """Poll until a function returns a true value."""
        return until(holds, f"{what}\nconsole: {self.console}", poll_s=0.02)

    def collect(self) -> None:
        """Keep the addresses asked for and the console's messages since the last call."""
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
        self.console += [entry["message"] for entry in self.driver.get_log("browser")]


@contextmanager
def browser(
    profile: Path, *, width: int = 1440, height: int = 1000, flags: tuple[str, ...] = (), requests: bool = True
) -> Iterator[Tab]:
    """Run Chromium with a new profile; keeping its requests costs time, as they hold all that the page's stream sends."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, *flags, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    kept = {"browser": "ALL"} | ({"performance": "ALL"} if requests else {})
    options.set_capability("goog:loggingPrefs", kept)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver"), log_output=os.devnull))
    driver.set_script_timeout(250)  # the accessibility rules on a busy machine
    try:
        yield Tab(driver)
    finally:
        driver.quit()

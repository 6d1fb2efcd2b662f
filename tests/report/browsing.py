"""A real browser for tests: Debian's Chromium without a screen."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


def find(*names: str) -> str | None:
    return next((path for path in map(shutil.which, names) if path), None)


@contextmanager
def browser(profile: Path, *, width: int = 1280, height: int = 900) -> Iterator[Any]:
    """A browser with a profile of its own; the test is skipped where there is none."""
    chromium, driver = find("chromium", "chromium-browser", "google-chrome"), find("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no Chromium with its driver here (Debian: apt-get install chromium chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium drives the browser")
    service = pytest.importorskip("selenium.webdriver.chrome.service")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # A busy machine may take long to draw; a test that hangs is ended by its own limit.
    options.set_capability("timeouts", {"script": 120_000, "pageLoad": 120_000})
    running = webdriver.Chrome(options=options, service=service.Service(driver))
    try:
        yield running
    finally:
        running.quit()

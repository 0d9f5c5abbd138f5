"""Debian's Chromium, driven by Playwright: no browser is downloaded, nothing outside loopback is asked.

with chromium() as browser:
    page = browser.new_page()
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

PROGRAM = shutil.which("chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-lcd-text",
    "--no-proxy-server",
    "--disable-component-update",
    "--disable-domain-reliability",
    "--disable-features=OptimizationHints,MediaRouter,Translate,AutofillServerCommunication",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
"""The last one: a name is not even looked up."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window."""
    assert PROGRAM is not None, "chromium is not installed"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()

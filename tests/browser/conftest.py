"""A browser for the tests of the viewer, and a server of the viewer for it to look at."""

import asyncio
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from nemo_gym.launch.ports import listen
from nemo_gym.view.database import RunDatabase
from nemo_gym.view.server import view_app

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
CHROMIUM = os.environ.get("GYM_TEST_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
"""The first browser that is installed; the variable selects another one."""
EXPECTED_COMPLAINTS = re.compile("status of 400|ERR_CONNECTION_REFUSED")
SCREENSHOTS = os.environ.get("GYM_SCREENSHOT_DIR")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright (python3 dev.py test sets it up)")
    if CHROMIUM is None:
        pytest.skip("needs a chromium (apt install chromium-headless-shell)")
    arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """Open a page; every console error fails the test, except two expected ones.

    A filter with a mistake is answered 400, and at the end of a test the server goes before the page does.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda message: (
            complaints.append(message.text)
            if message.type == "error" and not EXPECTED_COMPLAINTS.search(message.text)
            else None
        ),
    )
    yield page
    context.close()
    assert complaints == []


@contextmanager
def served_page(*indexes: RunDatabase) -> Iterator[str]:
    with listen("view", "127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(view_app(indexes), log_level="error", lifespan="on"))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(20)


def keep(page: Any, name: str) -> None:
    """Leave a picture where CI collects them."""
    if SCREENSHOTS:
        page.screenshot(path=str(Path(SCREENSHOTS) / f"{name}.png"), full_page=True)

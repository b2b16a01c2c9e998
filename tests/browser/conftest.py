"""A browser for the tests of the viewer, and a server of the viewer for it to look at."""

import asyncio
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from nemo_gym.launch.ports import listen
from nemo_gym.rollouts.run_files import RunFiles
from nemo_gym.view.database import RunDatabase
from nemo_gym.view.server import view_app
from tests.view.records import failure, record, write

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
CHROMIUM = os.environ.get("GYM_TEST_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
"""The first browser that is installed; the variable selects another one."""
EXPECTED_COMPLAINTS = re.compile("status of 40[04]|ERR_CONNECTION_REFUSED")
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
    context = browser.new_context(
        viewport={"width": 1280, "height": 900}, permissions=["clipboard-read", "clipboard-write"]
    )
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


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., RunDatabase]:
    """Write rollouts and return their index."""

    def make(*records: Any, failures: tuple[Any, ...] = (), name: str = "run") -> RunDatabase:
        output = write(tmp_path / name / "rollouts.jsonl", *records)
        write(tmp_path / name / "rollouts_failures.jsonl", *failures)
        index = RunDatabase(RunFiles(output), tmp_path / f"{name}.sqlite")
        index.build()
        return index

    return make


def twenty(make: Callable[..., RunDatabase], name: str = "run", solved: int = 3) -> RunDatabase:
    """Ten tasks twice; each task whose number is divisible by `solved` has reward 0, and the last rollout failed."""
    scored = [record(task, repeat, float(task % solved != 0)) for task in range(10) for repeat in range(2)]
    return make(*scored[:-1], failures=(failure(9, 1),), name=name)


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

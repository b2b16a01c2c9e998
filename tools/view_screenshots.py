"""Take pictures of every page of the viewer: `python -m tools.view_screenshots [--docs] [--only PAGE] [folder]`.

The pages show made-up runs (`tools.view_demo`) at 1,440, 1,024 and 390 pixels in both themes. `--docs` replaces the
pictures of the README and the documentation instead. It needs playwright and a Chromium (GYM_TEST_BROWSER chooses one).
"""

import argparse
import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import uvicorn

from nemo_gym.errors import GymError
from nemo_gym.launch.ports import listen
from nemo_gym.rollouts.run_files import RunFiles
from nemo_gym.view.database import RunDatabase
from nemo_gym.view.server import view_app
from tools.view_demo import DEMO_TASKS, LIVE_MINUTES, write_demo_runs, write_live_state
from tools.view_demo_tasks import SPECIAL_TASK

ROOT = Path(__file__).resolve().parents[1]
WIDTHS = {1440: 900, 1024: 800, 390: 844}
THEMES = ("light", "dark")
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
SETTLE_MS = 700
WITHOUT_PATHS = "document.querySelectorAll('.runhead .path').forEach(each => each.replaceChildren())"
"""A script for pictures: the folder of the made-up runs is one of this machine."""
ROLLOUT = f"#/run/0/rollout/{SPECIAL_TASK}/3"
PAGES = {
    "runs": ("#/runs", ".runs-table"),
    "overview": ("#/run/0", ".hero"),
    "rollouts": ("#/run/0/rollouts?where=reward+%3C+1&sort=tokens&down=1&at=41%3A3", ".drawer, .rw-row"),
    "rollouts-error": ("#/run/0/rollouts?where=reward+%3C+1+and+agnt+%3D%3D+%22bird_sql%22", ".ferr"),
    "rollouts-none": ("#/run/0/rollouts?where=reward+%3E+1+and+turns+%3E+1", ".nores"),
    "tasks": ("#/run/0/tasks?group=mixed", ".tasks-table"),
    "rollout": (ROLLOUT, ".turn"),
    "rollout-tokens": (f"{ROLLOUT}?tab=tokens", ".toks"),
    "rollout-tools": (f"{ROLLOUT}?tab=tools", ".toolschema"),
    "rollout-json": (f"{ROLLOUT}?tab=json", "#raw-text"),
    "failed": ("failed", ".failpanel"),
    "compare": ("#/compare/1,0", "h1"),
    "compare-many": ("#/compare/1,0,2", "h1"),
    "live": ("#/run/2/live", ".big3"),
    "missing": ("#/run/0/rollout/99999/0", "[role=alert]"),
}
"""Pages by name: their address, and what is there when they are complete."""
DOCS = {"view-overview": "overview", "view-rollouts": "rollouts", "view-rollout": "rollout", "view-compare": "compare"}


class NoBrowser(GymError, RuntimeError):
    """No Chromium is installed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pictures; return 0."""
    parser = argparse.ArgumentParser(prog="python -m tools.view_screenshots", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("view-screenshots"), help="folder of the pictures")
    parser.add_argument("--docs", action="store_true", help="replace the pictures in docs/images")
    parser.add_argument("--only", action="append", choices=PAGES, help="page to take; all pages by default")
    options = parser.parse_args(arguments)
    folder: Path = ROOT / "docs" / "images" if options.docs else options.folder
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as scratch,
        served_demo(Path(scratch)) as (url, pages, refresh),
        chromium() as browser,
    ):
        if options.docs:
            for name, page in DOCS.items():
                take_picture(browser, url, pages[page], folder / f"{name}.png", 1280, "light")
        else:
            for width in WIDTHS:
                for theme in THEMES:
                    for name in options.only or pages:
                        place = pages[name]
                        refresh()
                        take_picture(browser, url, place, folder / f"{name}-{width}-{theme}.png", width, theme)
    return 0


@contextmanager
def served_demo(folder: Path) -> Iterator[tuple[str, dict[str, tuple[str, str]], Callable[[], None]]]:
    """Serve the made-up runs; yield the address of the viewer, its pages and a function that renews the live file."""
    databases = []
    outputs = write_demo_runs(folder / "results")
    for number, output in enumerate(outputs):
        database = RunDatabase(RunFiles(output), folder / f"{number}.sqlite")
        database.build()
        databases.append(database)
    failed = databases[0].page(filter_text='outcome == "failed" and kind == "model_refused"', count=1).rows[0]
    pages = dict(PAGES)
    address = f"#/run/0/rollout/{failed['task']}/{failed['rollout']}?where=outcome+%3D%3D+%22failed%22"
    pages["failed"] = (address, PAGES["failed"][1])
    started = datetime.now(UTC) - timedelta(minutes=LIVE_MINUTES)

    def refresh() -> None:
        write_live_state(outputs[-1], DEMO_TASKS, started)  # the viewer does not believe an old one

    with listen("view", "127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(view_app(databases), log_level="error", lifespan="on"))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/", pages, refresh
        finally:
            server.should_exit = True
            thread.join(20)


@contextmanager
def chromium() -> Iterator[Any]:
    """Start a Chromium that is installed on this machine."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("GYM_TEST_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        raise NoBrowser("no Chromium is installed", fix="apt install chromium-headless-shell")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


def take_picture(browser: Any, url: str, place: tuple[str, str], path: Path, width: int, theme: str) -> None:
    """Open a page and write a picture of all of it."""
    address, ready = place
    size = {"width": width, "height": WIDTHS.get(width, 800)}
    context = browser.new_context(viewport=size, color_scheme=theme, reduced_motion="reduce")
    page = context.new_page()
    page.goto(url + address)
    page.locator(ready).first.wait_for()
    page.wait_for_timeout(SETTLE_MS)  # data of the other panels; a picture is no test
    page.evaluate(WITHOUT_PATHS)
    page.screenshot(path=str(path), full_page=True)
    context.close()


if __name__ == "__main__":
    raise SystemExit(main())

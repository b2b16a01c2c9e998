"""The viewer in a real browser on a large run; `python3 dev.py million` makes it a million rollouts."""

import os
import resource
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.rollouts.run_files import RunFiles
from nemo_gym.view.database import RunDatabase
from nemo_gym.view.summary import summarize
from perf.view import write_rollouts
from tests.browser.conftest import keep, served_page

ROWS = int(os.environ.get("GYM_VIEW_ROWS", "20000"))
PATIENCE = 15_000
MOST_MB = 500


def thousands(count: int) -> str:
    return f"{count:,}"


@pytest.mark.timeout(900)
def test_a_large_run_is_opened_filtered_and_read_to_its_end(page: Any, tmp_path: Path) -> None:
    """The first rows, the last one, the middle, a filter, a search, a rollout and its neighbour: each comes at once.

    What each takes is measured by `perf/view.py`; here a page that hangs, or a table that holds every row, fails.
    """
    write_rollouts(tmp_path / "rollouts.jsonl", ROWS)
    index = RunDatabase(RunFiles(tmp_path / "rollouts.jsonl"), tmp_path / "index.sqlite")
    index.build()
    summarize(index)
    page.set_default_timeout(PATIENCE)
    with served_page(index) as url:
        page.goto(f"{url}#/run/0")
        page.locator(".card", has_text=thousands(ROWS)).first.wait_for()
        keep(page, "million-overview")
        page.goto(f"{url}#/run/0/rollouts")
        page.locator("#range", has_text=f"of {thousands(ROWS)}").first.wait_for()
        page.locator(".rw-row .rw").first.wait_for()
        assert page.locator(".rw-row").count() < 60, "only the visible rows are in the page"
        page.keyboard.press("End")
        page.locator("#range", has_text=f"– {thousands(ROWS)} of").first.wait_for()
        page.locator('.rw-row[aria-selected="true"] .rw').wait_for()
        keep(page, "million-last-row")
        page.locator(".vt").evaluate("element => { element.scrollTop = element.scrollHeight / 2; }")
        page.locator(".rw-row .rw").first.wait_for()
        page.locator(".rw-row .loading-row").first.wait_for(state="detached")
        page.fill("#filter", f"reward >= 1 and task >= {ROWS // 8}")
        page.locator("#range", has_text="1 –").first.wait_for()
        page.locator(".status", has_text="match").wait_for()
        page.locator(".rw-row").first.dblclick()
        page.locator(".rhead .rw", has_text="1.00").wait_for()
        page.keyboard.press("j")
        page.locator(".rhead .rw", has_text="1.00").wait_for()
        page.goto(f"{url}#/run/0/rollouts?words={ROWS - 1}")
        page.locator("#range", has_text="1 – 1 of 1").first.wait_for()
        page.goto(f"{url}#/run/0/tasks")
        page.locator(".strip a").first.wait_for()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 < MOST_MB

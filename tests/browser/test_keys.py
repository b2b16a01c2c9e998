"""The key map of the viewer, in a real browser: everything can be done without a mouse."""

from collections.abc import Callable
from typing import Any

from nemo_gym.view.database import RunDatabase
from tests.browser.conftest import keep, served_page, twenty

Make = Callable[..., RunDatabase]


def test_the_table_is_read_with_the_keyboard(page: Any, make: Make) -> None:
    """Filter, rows, preview, row height, next failed, open."""
    with served_page(twenty(make)) as url:
        page.goto(f"{url}#/run/0/rollouts")
        page.locator("#range", has_text="of 20").wait_for()
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "filter"
        page.keyboard.type("task > 3")
        page.locator("#range", has_text="of 12").wait_for()
        page.keyboard.press("Escape")
        page.keyboard.press("j")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("k")
        page.keyboard.press("j")
        page.locator('.rw-row[aria-selected="true"]', has_text="4:1").wait_for()
        page.locator(".drawer").wait_for()
        page.keyboard.press("Space")
        page.locator(".drawer").wait_for(state="detached")
        page.keyboard.press("d")
        page.locator(".dens-two").wait_for()
        page.keyboard.press("f")
        page.locator('.rw-row[aria-selected="true"]', has_text="9:1").wait_for()
        page.wait_for_function("location.hash.includes('at=9%3A1')")
        page.keyboard.press("Enter")
        page.locator("h1", has_text="Task 9, repeat 1").wait_for()
        page.keyboard.press("Escape")
        page.locator('.rw-row[aria-selected="true"]', has_text="9:1").wait_for()
        keep(page, "rollouts")


def test_a_table_that_is_read_says_so(page: Any, make: Make) -> None:
    """ "0 of 20 rollouts match" before the first answer was a wrong number."""
    with served_page(twenty(make)) as url:
        held: list[Any] = []
        page.route("**/rollouts?*", lambda route: held.append(route))
        page.goto(f"{url}#/run/0/rollouts")
        page.locator("#range", has_text="loading").wait_for()
        page.wait_for_function("performance.getEntriesByType('resource').some(each => each.name.includes('columns'))")
        for route in held:
            route.continue_()
        page.locator("#range", has_text="1 – 20 of 20").wait_for()


def test_escape_closes_before_it_goes_back(page: Any, make: Make) -> None:
    """A reader who closes a menu or the preview must not lose the table behind it."""
    with served_page(twenty(make)) as url:
        page.goto(f"{url}#/run/0/rollouts")
        page.locator("#range", has_text="of 20").wait_for()
        page.keyboard.press("j")
        page.locator(".drawer").wait_for()
        page.get_by_role("button", name="Columns").click()
        page.locator(".menu").wait_for()
        page.keyboard.press("Escape")
        page.locator(".menu").wait_for(state="detached")
        assert page.locator(".drawer").count() == 1
        page.keyboard.press("Escape")
        page.locator(".drawer").wait_for(state="detached")
        assert "/rollouts" in page.url
        page.keyboard.press("Escape")
        page.locator(".hero").wait_for()


def test_a_rollout_is_read_with_the_keyboard(page: Any, make: Make) -> None:
    """Neighbours in the filter, repeats, tabs, find, unfold, copy."""
    with served_page(twenty(make)) as url:
        page.goto(f"{url}#/run/0/rollout/3/1?where=reward+%3C+1")
        page.locator("h1", has_text="Task 3, repeat 1").wait_for()
        page.keyboard.press("j")
        page.locator("h1", has_text="Task 6, repeat 0").wait_for()
        page.keyboard.press("k")
        page.locator("h1", has_text="Task 3, repeat 1").wait_for()
        page.keyboard.press("ArrowLeft")
        page.locator("h1", has_text="Task 3, repeat 0").wait_for()
        page.keyboard.press("3")
        page.locator(".toolschema, .empty").first.wait_for()
        page.keyboard.press("4")
        page.locator("#raw-text", has_text="_ng_task_index").wait_for()
        page.keyboard.press("1")
        page.locator(".turn").first.wait_for()
        page.keyboard.press("e")
        page.locator(".convo details[open]").first.wait_for()
        page.keyboard.press("/")
        page.keyboard.type("think")
        page.locator(".cfind .count", has_text="1 of 1").wait_for()
        page.keyboard.press("Escape")
        page.keyboard.press("n")
        page.keyboard.press("p")
        page.keyboard.press("f")
        page.locator("h1", has_text="Task 9, repeat 1").wait_for()
        keep(page, "rollout")


def test_pages_are_reached_with_the_keyboard(page: Any, make: Make) -> None:
    """Go to a page by two keys, to a task by its number; the list of keys names them all."""
    with served_page(twenty(make)) as url:
        page.goto(f"{url}#/run/0")
        page.locator(".hero").wait_for()
        page.keyboard.press("g")
        page.keyboard.press("r")
        page.locator(".rw-row").first.wait_for()
        page.keyboard.press("?")
        dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
        dialog.wait_for()
        assert all(
            text in dialog.inner_text() for text in ("Open the rollout", "Copy a link to this view", "Next failed")
        )
        page.keyboard.press("Escape")
        dialog.wait_for(state="detached")
        page.keyboard.press("Control+k")
        page.get_by_role("dialog", name="Go to").wait_for()
        page.keyboard.type("7:1")
        page.keyboard.press("Enter")
        page.locator("h1", has_text="Task 7, repeat 1").wait_for()
        page.keyboard.press("g")
        page.keyboard.press("o")
        page.locator(".hero").wait_for()


def test_columns_and_filters_are_kept_by_the_browser(page: Any, make: Make) -> None:
    """What was chosen is there after a reload; the address holds the columns for others."""
    with served_page(twenty(make)) as url:
        page.goto(f"{url}#/run/0/rollouts?where=reward+%3C+1")
        page.get_by_role("button", name="Save this filter").click()
        page.get_by_role("button", name="Columns").click()
        page.get_by_label("Turns").uncheck()
        page.get_by_role("columnheader", name="Turns").wait_for(state="detached")
        assert "cols=" in page.url
        page.goto(f"{url}#/run/0/rollouts")
        page.reload()
        page.locator(".chip", has_text="reward < 1").wait_for()

        assert page.get_by_role("columnheader", name="Turns").count() == 0


def test_the_theme_is_switched_and_kept(page: Any, make: Make) -> None:
    """Light or dark, whatever the system says."""
    with served_page(twenty(make)) as url:
        page.goto(f"{url}#/run/0")
        page.locator("#theme").click()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.reload()
        page.locator(".hero").wait_for()

        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"

"""Tasks of a researcher with two runs: which is better, which tasks flipped, is the verifier wrong."""

from collections.abc import Callable
from typing import Any

from nemo_gym.rollouts.annotations import read_annotations
from nemo_gym.view.database import RunDatabase
from tests.browser.conftest import keep, served_page, twenty
from tests.view.records import record

Make = Callable[..., RunDatabase]


def test_which_tasks_flipped_is_read_side_by_side(page: Any, make: Make) -> None:
    """The verdict is a sentence; the flips lead to both conversations, also with the keyboard."""
    before = make(*[record(task, 0, float(task < 4), answer=f"before {task}") for task in range(12)], name="before")
    after = make(*[record(task, 0, float(task != 1), answer=f"after {task}") for task in range(12)], name="after")
    with served_page(before, after) as url:
        page.goto(f"{url}#/compare/0,1")
        page.get_by_text("B is better by 58.3 points").wait_for()
        assert page.locator(".flips-table tbody tr").count() == 9
        page.get_by_role("button", name="▼ Down").click()
        page.locator(".flips-table tbody tr").get_by_role("button", name="What is 1 + 1?").click()
        page.get_by_role("heading", name="Task 1, side by side").wait_for()
        page.locator(".tdiff").get_by_text("before").first.wait_for()
        page.get_by_role("button", name="▲ Up").click()
        page.keyboard.press("j")
        page.get_by_role("heading", name="Task 4, side by side").wait_for()
        keep(page, "compare-flips")


def test_changed_lines_stand_beside_the_lines_they_resemble(page: Any, make: Make) -> None:
    """An added line above must not pair every line below with a stranger and mark single letters in it."""
    one = make(record(0, 0, 0.0, answer="Answer: A"), name="one")
    two = make(record(0, 0, 1.0, answer="I believe it is so.\n\nAnswer: B"), name="two")
    with served_page(one, two) as url:
        page.goto(f"{url}#/compare/0,1?task=0")
        pair = page.locator(".tdiff .dpair", has_text="Answer: A")
        pair.wait_for()

        assert "Answer: B" in pair.inner_text()
        assert page.locator(".tdiff mark").all_inner_texts() == ["A", "B"]


def test_several_runs_are_compared_with_the_first(page: Any, make: Make) -> None:
    """A table of all runs with corrected p values; the tasks, flips and conversations of a chosen one stand below."""
    runs = [make(*[record(task, 0, float(task < 3 * n)) for task in range(12)], name=f"run{n}") for n in (1, 2, 4)]
    with served_page(*runs) as url:
        page.goto(f"{url}#/compare/0,1,2")
        page.get_by_text("Against A:").wait_for()
        keep(page, "compare-many")
        page.locator(".flips-table thead", has_text="B").wait_for()
        page.get_by_role("link", name="run4").click()
        page.locator(".flips-table thead", has_text="C").wait_for()
        page.get_by_role("heading", name="side by side").wait_for()
        assert page.url.endswith("#/compare/0,1,2?with=2")
        assert page.locator('.compare tr[class="selected"] a[aria-current="true"]').inner_text() == "run4"


def test_a_wrong_verdict_is_noted_and_found_again(page: Any, make: Make) -> None:
    """The note is stored next to the run, and stays what was typed."""
    run = twenty(make)
    with served_page(run) as url:
        page.goto(f"{url}#/run/0/rollout/3/0")
        section = page.locator("section.annotation")
        section.get_by_role("button", name="Wrong verdict").click()
        section.get_by_label("Note").fill("4 is <b>right</b>")
        section.get_by_role("button", name="Save note").click()
        section.get_by_text("saved").wait_for()
        page.goto(f'{url}#/run/0/rollouts?where=annotation+==+"wrong_verdict"')
        page.get_by_text("1 of 20").first.wait_for()

    (annotation,) = read_annotations(run.run.output).values()
    assert (annotation.rollout_id, annotation.verdict, annotation.note) == (
        (3, 0),
        "wrong_verdict",
        "4 is <b>right</b>",
    )

"""What a researcher looks for is visible without scrolling sideways: answers on phones, columns beside the preview."""

import json
import os
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from nemo_gym.rollouts.run_files import live_path_for, lock_path_for, run_path_for
from nemo_gym.view.database import RunDatabase
from tests.browser.conftest import keep, served_page, twenty
from tests.view.records import record
from tools.view_screenshots import served_demo

Make = Callable[..., RunDatabase]
ANSWER = r"So \boxed{42}, or \boxed{\frac{1}{2}}, but \boxed{open is no box."


@pytest.fixture
def phone(browser: Any) -> Any:
    context = browser.new_context(viewport={"width": 390, "height": 844})
    yield context.new_page()
    context.close()


@pytest.fixture(scope="module")
def demo_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served_demo(tmp_path_factory.mktemp("demo")) as (url, _, refresh):
        refresh()
        yield url


def assert_visible_on_a_phone(page: Any, selector: str) -> None:
    elements = page.locator(selector)
    elements.first.wait_for()
    for place in range(elements.count()):
        box = elements.nth(place).bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390, (selector, place, box)


def test_the_scores_of_runs_stand_on_the_first_page_of_a_phone(phone: Any, make: Make) -> None:
    """A list of runs without their scores answers nothing; the other facts stand below the name."""
    with served_page(twenty(make), twenty(make, name="other", solved=4)) as url:
        phone.goto(f"{url}#/runs")
        assert_visible_on_a_phone(phone, ".runs-table .cell")
        keep(phone, "runs-390")

        assert phone.get_by_text("20 rollouts · 1 failed").count() == 2


def test_a_comparison_is_read_on_a_phone(phone: Any, make: Make) -> None:
    """Change and verdict of each subset are the answer; tasks, means and intervals give way."""
    agents = [{"name": name} for name in ("a_long_name_of_an_agent", "another_agent")]

    def run_of(name: str, solved: int) -> RunDatabase:
        places = [(task, repeat) for task in range(10) for repeat in range(2)]
        return make(
            *[record(*one, float(one[0] % solved != 0), agent_ref=agents[one[0] % 2]) for one in places], name=name
        )

    with served_page(run_of("one", 3), run_of("other", 4)) as url:
        phone.goto(f"{url}#/compare/0,1")
        assert_visible_on_a_phone(phone, ".subsets-table tr > :last-child")
        assert phone.get_by_text("10 tasks in both, 2 repeats each").count() == 1


def test_the_repeats_of_tasks_are_read_on_a_phone(phone: Any, make: Make) -> None:
    """Which tasks are mixed is the question of this page; its answer must not stand beside the screen."""
    rollouts = [record(task, repeat, float((task + repeat) % 3 == 0)) for task in range(3) for repeat in range(16)]
    with served_page(make(*rollouts)) as url:
        phone.goto(f"{url}#/run/0/tasks")
        assert_visible_on_a_phone(phone, ".tasks-table .strip a")
        assert phone.locator(".tasks-table .strip a").count() == 48
        first = phone.locator(".tasks-table tbody tr").first
        assert_visible_on_a_phone(phone, ".tasks-table tbody tr > :last-child")
        keep(phone, "tasks-390")

        assert first.get_by_role("link", name="What is 0 + 1?").bounding_box()["width"] > 80
        assert phone.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_all_repeats_of_a_task_can_be_opened(page: Any, make: Make) -> None:
    """A chip that is cut off at the edge of its column hides a reward."""
    with served_page(make(*[record(0, repeat, float(repeat % 2)) for repeat in range(24)])) as url:
        page.goto(f"{url}#/run/0/tasks")
        column, last = page.locator(".tasks-table td:has(.strip)"), page.get_by_role("link", name="repeat 23: reward 1")
        last.wait_for()
        outer, inner = column.bounding_box(), last.bounding_box()

        assert inner["x"] + inner["width"] <= outer["x"] + outer["width"]
        assert inner["y"] + inner["height"] <= outer["y"] + outer["height"]


@pytest.fixture
def tablet(browser: Any) -> Any:
    context = browser.new_context(viewport={"width": 1024, "height": 800})
    yield context.new_page()
    context.close()


def test_tables_of_runs_and_tasks_fit_a_tablet(tablet: Any, demo_url: str) -> None:
    """Score, what was not scored, and cost are why one looks at a list of runs; the question names a task."""
    for address, table in (("#/runs", ".runs-table"), ("#/compare/1,0,2", ".runs-compared"), ("#/run/0/tasks", "")):
        tablet.goto(demo_url + address)
        if table:
            tablet.locator(f"{table} tbody tr").first.wait_for()
            box = tablet.locator(table).locator("xpath=..")
            assert box.evaluate("each => each.scrollWidth <= each.clientWidth"), address
    question = tablet.locator(".tasks-table tbody td:nth-child(2)").first
    question.wait_for()
    assert question.bounding_box()["width"] >= 220


def test_parts_of_a_bar_are_named_where_their_name_has_room(phone: Any, demo_url: str) -> None:
    """Half a word names nothing: at 390 pixels a small part has only its hover text."""
    phone.goto(f"{demo_url}#/run/2/live")
    phone.locator(".timebar i", has_text="model").wait_for()
    cut = "parts => parts.filter(each => each.scrollWidth > each.clientWidth).length"

    assert phone.locator(".timebar i").evaluate_all(cut) == 0
    assert_visible_on_a_phone(phone, ".wait-reason")


def test_columns_give_way_only_where_there_is_no_room(browser: Any, make: Make) -> None:
    """Agent, turns and time are what failures are sorted by; beside the preview there is room for them at 1440 px."""
    with served_page(twenty(make)) as url:
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page = context.new_page()
        page.goto(f"{url}#/run/0/rollouts?at=1%3A0")
        page.locator(".drawer").wait_for()
        page.get_by_role("columnheader", name="Agent").wait_for()

        titles = page.get_by_role("columnheader").all_inner_texts()
        assert {"Agent", "Turns", "Tokens"} <= {title.split(" ")[0].strip() for title in titles}
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        context.close()


def test_boxed_answers_outside_formulas_are_boxed(page: Any, make: Make) -> None:
    """Models often leave out the dollar signs; the preview renders the answer as the rollout does."""
    with served_page(make(record(0, 0, answer=ANSWER), record(1, 0))) as url:
        for address, place in (("rollout/0/0", ".prose"), ("rollouts?at=0%3A0", ".drawer .last-answer")):
            page.goto(f"{url}#/run/0/{address}")
            page.reload()
            answer = page.locator(place, has_text="So 42")
            answer.locator(".boxedtext", has_text="42").wait_for()

            assert answer.locator("math .boxed, math.boxed").count() == 1
            assert r"\boxed{open is no box." in answer.inner_text()


def test_a_rate_limit_is_named_while_a_run_goes_on(page: Any, make: Make) -> None:
    """The user who sees a slow run must know that the endpoint, and not the environment, is the reason."""
    run, now = twenty(make), datetime.now(UTC).isoformat()
    call = {"waits_for": "policy_model /v1/responses", "reason": "rate limited (429), retry 3 after 8 s"}
    live = {
        "updated_at": now,
        "started_at": now,
        "planned": 40,
        "running": 4,
        "minutes": [{"minute": 0, "done": 20, "rejected": True}],
        "oldest": [{"task": 11, "rollout": 0, "agent": "a", "seconds": 61.0, **call}],
        "waiting": {"policy_model /v1/responses": 4},
        "rejections": [{"server": "policy_model", "status": 429, "rollouts": 3}],
    }
    run_path_for(run.run.output).write_text(json.dumps({"planned": {"count": 40}}))
    lock_path_for(run.run.output).write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
    live_path_for(run.run.output).write_text(json.dumps(live))
    with served_page(run) as url:
        page.goto(f"{url}#/run/0/live")
        page.get_by_text("policy_model is limiting our rate: 3 of 4 running rollouts wait after a 429").wait_for()

        assert page.get_by_text("rate limited (429), retry 3 after 8 s").count() == 1
        assert page.get_by_text("calls rejected").count() == 1
        keep(page, "live-rejections")


def test_only_a_verdict_can_be_called_wrong(page: Any, make: Make) -> None:
    """A failed rollout has no verdict; a label for it would enter the calibration of verifiers."""
    with served_page(twenty(make)) as url:
        page.goto(f"{url}#/run/0/rollout/9/1")
        page.get_by_label("Note").wait_for()
        assert page.get_by_text("Wrong verdict").count() == 0
        page.goto(f"{url}#/run/0/rollout/9/0")
        page.get_by_text("Wrong verdict").wait_for()

"""Tasks of a researcher with two runs: which is better, which tasks flipped, is the verifier wrong."""

import json
from collections.abc import Callable
from typing import Any

from nemo_gym.rollouts.annotations import read_annotations
from nemo_gym.rollouts.run_files import run_path_for
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


def test_sentences_are_compared_by_word(page: Any, make: Make) -> None:
    """Letters that two words have in common by chance are no sign of what changed; short answers go by character."""
    one = make(record(0, 0, 0.0, answer="So the answer is 261."), name="one")
    two = make(record(0, 0, 1.0, answer="The final answer is 262."), name="two")
    with served_page(one, two) as url:
        page.goto(f"{url}#/compare/0,1?task=0")
        page.locator(".tdiff mark").first.wait_for()

        marked = " ".join(page.locator(".tdiff mark").all_inner_texts()).split()
        assert set(marked) == {"So", "the", "261", "The", "final", "262"}


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


def test_repeats_of_a_task_are_chosen_side_by_side(page: Any, make: Make) -> None:
    """All repeats of both runs are seen at once; a link shows the same two of them, and Back the two before."""

    def run_of(name: str) -> RunDatabase:
        rollouts = [(task, repeat) for task in range(2) for repeat in range(3)]
        return make(*[record(*one, float(one[1] == 2), answer=f"{name} {one[1]}") for one in rollouts], name=name)

    with served_page(run_of("before"), run_of("after")) as url:
        page.goto(f"{url}#/compare/0,1?task=1")
        strip = page.get_by_role("group", name="Repeats of run B")
        strip.wait_for()
        assert strip.get_by_role("link").all_inner_texts() == ["0.00", "0.00", "1.00"]
        strip.get_by_role("link", name="repeat 2: reward 1").click()
        page.locator(".tdiff").get_by_text("after 2").first.wait_for()
        assert page.locator(".tdiff").get_by_text("before 0").count() > 0
        page.reload()
        page.locator(".tdiff").get_by_text("after 2").first.wait_for()
        page.go_back()
        page.locator(".tdiff").get_by_text("after 0").first.wait_for()


def test_a_repeat_that_is_no_number_is_the_first_one(page: Any, make: Make) -> None:
    """An address with a mistake must not ask the server for conversations without end."""
    runs = [make(record(0, 0, 0.0, answer=name), name=name) for name in ("one", "two")]
    with served_page(*runs) as url:
        addresses: list[str] = []
        page.on("request", lambda request: addresses.append(request.url))
        page.goto(f"{url}#/compare/0,1?task=0&first=x")
        page.locator(".tdiff").get_by_text("two").first.wait_for()
        page.wait_for_load_state("networkidle")

        conversations = [address for address in addresses if "/rollouts/0/0?" in address]
        assert len(conversations) == 2, "one of each run"


def test_a_swap_keeps_the_repeats_of_each_run(page: Any, make: Make) -> None:
    """A repeat belongs to its run, which is now the other one."""
    runs = [make(*[record(0, n, 0.0, answer=f"{name} {n}") for n in range(3)], name=name) for name in ("one", "two")]
    with served_page(*runs) as url:
        page.goto(f"{url}#/compare/0,1?task=0&second=2")
        page.locator(".tdiff").get_by_text("two 2").first.wait_for()
        page.keyboard.press("x")
        page.wait_for_url("**/#/compare/1,0?task=0&first=2")
        page.locator(".tdiff").get_by_text("one 0").first.wait_for()

        assert page.locator(".tdiff").get_by_text("two 2").count() > 0


def test_addresses_of_a_comparison_that_lack_a_run(page: Any, make: Make) -> None:
    """A folder with one run has nothing to compare; an address of an earlier version still opens."""
    with served_page(make(record(0, 0), name="one")) as url:
        page.goto(f"{url}#/compare")
        page.get_by_text("Choose two runs").wait_for()
        parse = "gymView.router.parse"
        for query in ("", "?task=3"):
            old, new = f"'#/run/3/compare/1{query}'", f"'#/compare/3,1{query}'"
            assert page.evaluate(f"{parse}({old})") == page.evaluate(f"{parse}({new})")


def test_a_run_is_compared_with_an_earlier_one_of_its_rows(page: Any, make: Make) -> None:
    """The same rows weigh more than an earlier run, and that more than the same environment."""
    with served_page(make(record(0, 0), name="one")) as url:
        page.goto(url)
        page.locator("main h1").first.wait_for(state="attached")

        def other(*others: tuple[str, str, str]) -> int:
            own = {"number": 0, "started_at": "2026-11-19", "data": "a", "environment": "e"}
            keys = ("number", "started_at", "data", "environment")
            runs = [own, *(dict(zip(keys, (n, *rest), strict=True)) for n, rest in enumerate(others, 1))]
            address = page.evaluate("runs => gymView.compareAddressOf(runs, 0)", runs)
            (number,) = {int(each) for each in address.rsplit("/", 1)[1].split(",")} - {0}
            return number

        assert other(("2026-11-20", "a", "f"), ("2026-11-18", "b", "e")) == 1
        assert other(("2026-11-20", "b", "e"), ("2026-11-18", "b", "f")) == 2


def test_a_point_leads_to_its_tasks(page: Any, make: Make) -> None:
    """Every number leads to its rollouts: a point far from the diagonal is the first one to read."""
    before = make(*[record(task, 0, float(task == 7)) for task in range(12)], name="before")
    after = make(*[record(task, 0, float(task != 7)) for task in range(12)], name="after")
    with served_page(before, after) as url:
        page.goto(f"{url}#/compare/0,1?task=3")
        page.get_by_role("heading", name="Task 3, side by side").wait_for()
        page.get_by_role("link", name="task 7").click()
        page.get_by_role("heading", name="Task 7, side by side").wait_for()

        assert page.url.endswith("#/compare/0,1?task=7")


def test_a_mark_has_the_colour_of_its_verdict(page: Any, make: Make) -> None:
    """A point in the colour of "better" beside "no clear change" says two things; the corrected p value decides."""
    agents = [{"name": f"agent{number}"} for number in range(6)]

    def run_of(name: str, gain: float) -> RunDatabase:
        rewards = [0.4 + 0.02 * (task % 5) + gain * (task % 6 == 0) * (0.2 + 0.25 * (task % 4)) for task in range(48)]
        return make(
            *[record(task, 0, reward, agent_ref=agents[task % 6]) for task, reward in enumerate(rewards)], name=name
        )

    with served_page(run_of("before", 0.0), run_of("after", 0.3)) as url:
        page.goto(f"{url}#/compare/0,1")
        page.locator(".subsets-table tbody tr").nth(6).wait_for()
        rows = page.locator(".subsets-table tbody tr")
        for place in range(rows.count()):
            verdict = rows.nth(place).locator("td").last.inner_text()
            look = rows.nth(place).locator("circle").get_attribute("class")
            assert look == {"better": "fill-up", "worse": "fill-down"}.get(verdict, "fill-same"), place


def test_letters_of_many_runs_are_readable(page: Any, make: Make) -> None:
    """Eight runs can be compared: the letters of the last ones were white on white."""
    runs = [make(*[record(task, 0, float(task < n)) for task in range(6)], name=f"run{n}") for n in range(6)]
    with served_page(*runs) as url:
        page.goto(f"{url}#/compare/0,1,2,3,4,5")
        page.locator(".runs-compared .runtag").nth(5).wait_for()
        look = "tags => tags.map(tag => getComputedStyle(tag).backgroundColor)"
        colors = page.locator(".runs-compared .runtag").evaluate_all(look)

        assert "rgba(0, 0, 0, 0)" not in colors


def test_compare_begins_with_the_run_before(page: Any, make: Make) -> None:
    """The key and the tab compare a run with the newest earlier run of its rows, and stay with that run."""
    runs = [make(*[record(task, 0, float(task < 3)) for task in range(6)], name=name) for name in ("new", "x", "old")]
    for run, day, rows in zip(runs, (19, 18, 17), ("blake2b:a", "blake2b:b", "blake2b:a"), strict=True):
        identity = {"started_at": f"2026-11-{day}T08:00:00+00:00", "rows": rows}
        run_path_for(run.run.output).write_text(json.dumps(identity))
    with served_page(*runs) as url:
        page.goto(f"{url}#/run/0")
        page.locator(".hero").wait_for()
        page.keyboard.press("g")
        page.keyboard.press("c")
        page.locator(".flips-table, .flips-empty").first.wait_for()
        assert page.url.endswith("#/compare/2,0")
        assert page.locator("header .pick").inner_text() == "new"


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

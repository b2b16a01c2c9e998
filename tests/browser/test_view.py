"""The viewer in a real browser: opened, filtered, read, followed and exported, also with hostile rollouts in it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.rollouts.run_files import RunFiles
from nemo_gym.view.database import RunDatabase
from nemo_gym.view.export import export_bundle
from tests.browser.conftest import keep, served_page
from tests.view.records import append, failure, record, timed_record, write

HOSTILE = [
    "<script>window.hacked = 1</script>",
    '<img src=x onerror="window.hacked = 1">',
    "</pre></article><svg onload=window.hacked=1>",
    "[click](javascript:window.hacked=1)",
    "\u202egnp.exe",
    "\x1b[31mred\x1b[0m",
    "'; DROP TABLE rollouts; --",
]


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., RunDatabase]:
    def make(*records: Any, failures: tuple[Any, ...] = (), name: str = "run") -> RunDatabase:
        output = write(tmp_path / name / "rollouts.jsonl", *records)
        write(tmp_path / name / "rollouts_failures.jsonl", *failures)
        index = RunDatabase(RunFiles(output), tmp_path / f"{name}.sqlite")
        index.build()
        return index

    return make


def twenty(make: Callable[..., RunDatabase], name: str = "run", solved: int = 3) -> RunDatabase:
    scored = [record(task, repeat, float(task % solved != 0)) for task in range(10) for repeat in range(2)]
    return make(*scored[:-1], failures=(failure(9, 1),), name=name)


def test_why_did_these_fail_is_answered_in_a_few_clicks(page: Any, make: Callable[..., RunDatabase]) -> None:
    """Overview, the failures, one of them, what was said."""
    with served_page(twenty(make)) as url:
        page.goto(url)
        page.get_by_text("Mean reward").wait_for()
        keep(page, "overview")
        row = page.locator("tr", has_text="timeout")
        row.get_by_role("link", name="look").click()
        page.locator("#range", has_text="1–1 of 1").first.wait_for()
        page.locator("tbody tr").first.click()
        page.get_by_text("policy_model: too slow").wait_for()

        assert "failed: timeout" in page.locator("h1").inner_text()


def test_the_overview_says_what_the_time_was_spent_on(page: Any, make: Callable[..., RunDatabase]) -> None:
    """Latency per phase on the run's page, and a bar on the rollout's."""
    slow = [timed_record(task, 4.0 + task, queue=0.5, model=2.5 + task, tools=0.6, verify=0.4) for task in range(8)]
    with served_page(make(*slow)) as url:
        page.goto(url)
        page.locator("h2", has_text="Latency").wait_for()
        keep(page, "latency")
        assert "7.50 s" in page.locator("tr", has_text="whole rollout").inner_text()
        page.goto(f"{url}#/run/0/rollout/3/0")
        page.get_by_text("verdict 0.40 s").wait_for()

        assert page.locator(".time i").count() == 4


def test_a_judge_can_be_read(page: Any, make: Callable[..., RunDatabase]) -> None:
    """Its transcript opens under the verdict, as text."""
    question = {"input": [{"role": "user", "content": "Is <b>0.5</b> the same as 1/2?"}]}
    answer = {"output": [{"role": "assistant", "content": [{"type": "output_text", "text": "[[A=B]]"}]}]}
    judged = record(
        judge_evaluations=[{"responses_create_params": question, "response": answer, "verdict_label": "[[A=B]]"}]
    )
    with served_page(make(judged)) as url:
        page.goto(f"{url}#/run/0/rollout/0/0")
        page.get_by_text("judge 1: [[A=B]]").click()

        page.get_by_text("Is <b>0.5</b> the same as 1/2?").first.wait_for()


def test_filter_sort_and_read_with_the_keyboard(page: Any, make: Callable[..., RunDatabase]) -> None:
    """Reading hundreds of rollouts must not need a mouse."""
    with served_page(twenty(make)) as url:
        page.goto(f"{url}#/run/0/rollouts")
        page.fill("#where", "reward < 1")
        page.press("#where", "Enter")
        page.locator("#range", has_text="of 7").first.wait_for()
        keep(page, "rollouts")
        page.get_by_role("button", name="Task").click()
        page.locator("th[aria-sort=descending]").wait_for()
        page.locator("tbody tr").first.click()
        page.locator("h1", has_text="Task 9, repeat 0").wait_for()
        page.keyboard.press("k")
        page.locator("h1", has_text="Task 6, repeat 1").wait_for()
        keep(page, "rollout")
        page.keyboard.press("r")
        page.locator("#raw-text", has_text="_ng_task_index").wait_for()
        page.keyboard.press("f")
        page.locator("h1", has_text="Task 9, repeat 1").wait_for()
        page.keyboard.press("Escape")
        page.locator("#range", has_text="of 7").first.wait_for()


def test_a_filter_with_a_mistake_says_so(page: Any, make: Callable[..., RunDatabase]) -> None:
    """An empty table would look like a run without such rollouts."""
    with served_page(twenty(make)) as url:
        page.goto(f"{url}#/run/0/rollouts?where=rewrd<1")
        page.get_by_role("alert").wait_for()

        assert "reward" in page.get_by_role("alert").inner_text()
        page.evaluate("location.hash = '#/run/0/rollouts'")
        page.locator("#range").first.wait_for()


def test_a_run_that_goes_on_is_followed_live(page: Any, make: Callable[..., RunDatabase]) -> None:
    """Users watch a run while it collects."""
    index = twenty(make)
    with served_page(index) as url:
        page.goto(f"{url}#/run/0/rollouts")
        page.locator("#range", has_text="of 20").first.wait_for()

        append(index.run.output, record(10, 0), record(10, 1))

        page.locator("#range", has_text="of 22").first.wait_for()


def test_two_runs_are_compared(page: Any, make: Callable[..., RunDatabase]) -> None:
    """The question after a change is which tasks became better or worse."""
    with served_page(twenty(make, "first"), twenty(make, "second", solved=2)) as url:
        page.goto(url)
        page.locator("h2", has_text="Compared with").wait_for()
        assert page.locator("tr", has_text="mean reward").locator("td").count() == 3
        keep(page, "beside")
        page.get_by_role("link", name="second/rollouts").click()
        page.get_by_text("Tasks that differ").wait_for()
        keep(page, "comparison")

        assert "Difference of means" in page.locator("main").inner_text()


def test_hostile_rollouts_are_only_ever_text(page: Any, make: Callable[..., RunDatabase]) -> None:
    """Whatever a model writes, it cannot run, load, or turn the page around."""
    hostile = [record(task, 0, answer=text, extracted_answer=text) for task, text in enumerate(HOSTILE)]
    with served_page(make(*hostile, failures=(failure(50, 0, message=HOSTILE[0]),))) as url:
        for view in (
            "#/run/0",
            "#/run/0/rollouts",
            "#/run/0/tasks",
            *(f"#/run/0/rollout/{n}/0" for n in (0, 1, 2, 4, 50)),
        ):
            page.goto(url + view)
            page.reload()
            page.locator("main > *").first.wait_for()
            assert page.evaluate("window.hacked") is None
            assert (
                page.evaluate("document.querySelectorAll('main script, main svg[onload], main img[onerror]').length")
                == 0
            )
        page.goto(f"{url}#/run/0/rollout/4/0")
        page.get_by_text("⟦U+202E⟧gnp.exe").first.wait_for()
        keep(page, "hostile")


def test_a_huge_answer_opens_at_once_and_can_be_read_on(page: Any, make: Callable[..., RunDatabase]) -> None:
    """A runaway answer must not freeze the page, and its end must be readable."""
    with served_page(make(record(0, 0, answer="x" * 50_000_000))) as url:
        page.goto(f"{url}#/run/0/rollout/0/0")
        page.get_by_role("button", name="show more").click(timeout=30_000)

        page.wait_for_function("document.querySelector('.said:last-of-type') !== null")
        shown = page.evaluate("[...document.querySelectorAll('.said')].at(-1).textContent.length")
        assert 20_000 <= shown <= 100_000


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_phones_and_desks_by_day_and_night(
    browser: Any, make: Callable[..., RunDatabase], width: int, scheme: str
) -> None:
    """A horizontal scroll bar or unreadable colours make the page useless there."""
    with served_page(twenty(make)) as url:
        context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
        page = context.new_page()
        for view, shown in (("", ".cards"), ("/rollouts", "#range"), ("/rollout/0/0", ".event"), ("/tasks", ".chip")):
            page.goto(f"{url}#/run/0{view}")
            page.locator(shown).first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
            keep(page, f"{view.split('/')[-1] or 'overview'}-{width}-{scheme}")
        context.close()


def test_a_bundle_opens_from_disk(page: Any, make: Callable[..., RunDatabase], tmp_path: Path) -> None:
    """Shared by mail, opened on a machine without Python."""
    export_bundle([twenty(make)], tmp_path / "bundle")

    page.goto((tmp_path / "bundle" / "index.html").as_uri())
    page.get_by_text("Mean reward").wait_for()
    page.get_by_role("link", name="Rollouts").click()
    page.fill("#where", 'reward < 1 and "nothing" in extracted')
    page.press("#where", "Enter")
    page.locator("#range", has_text="of 7").first.wait_for()
    page.locator("tbody tr").first.click()
    page.locator("h1", has_text="Task 0, repeat 0").wait_for()
    page.keyboard.press("j")
    page.locator("h1", has_text="Task 0, repeat 1").wait_for()

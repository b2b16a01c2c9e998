"""The viewer in a real browser: the tasks that a researcher has, from the question to the answer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.rollouts.run_files import run_path_for
from nemo_gym.view.database import RunDatabase
from nemo_gym.view.export import export_bundle
from nemo_gym.view.filters import COLUMNS
from tests.browser.conftest import keep, served_page, twenty
from tests.view.records import append, failure, record, timed_record

Make = Callable[..., RunDatabase]


def test_why_did_these_fail_is_answered_in_a_few_clicks(page: Any, make: Make) -> None:
    """Overview, the failures, one of them, what was said."""
    with served_page(twenty(make)) as url:
        page.goto(url)
        page.get_by_text("Mean reward").first.wait_for()
        keep(page, "overview")
        page.locator(".kinds a", has_text="timeout").click()
        page.locator("#range", has_text="1 – 1 of 1").wait_for()
        page.locator(".rw-row").first.dblclick()
        page.locator(".failpanel").wait_for()

        assert page.locator("h1").inner_text() == "Task 9, repeat 1"
        assert "too slow" in page.locator(".failpanel").inner_text()
        assert "not scored" in page.locator(".verdict").inner_text()


def test_is_the_verifier_wrong_is_seen_beside_the_conversation(page: Any, make: Make) -> None:
    """Extracted and expected stand side by side with their difference, and the filter finds such rollouts."""
    with served_page(twenty(make)) as url:
        page.goto(f"{url}#/run/0/rollouts")
        page.fill("#filter", 'reward < 1 and extracted == "nothing"')
        page.locator("#range", has_text="of 7").wait_for()
        page.locator(".rw-row").first.click()
        page.locator(".drawer .ans").wait_for()
        page.keyboard.press("Enter")
        page.locator(".verdict .ans").wait_for()

        assert page.locator(".verdict .ans mark.del").count() > 0
        assert page.locator(".verdict .ans mark.add").count() > 0


def test_the_longest_rollouts_are_one_click_away(page: Any, make: Make) -> None:
    """A click on a column sorts, a second one reverses; the order is in the address."""
    slow = [timed_record(task, 4.0 + task, queue=0.5, model=2.5 + task, tools=0.6, verify=0.4) for task in range(8)]
    with served_page(make(*slow)) as url:
        page.goto(f"{url}#/run/0/rollouts")
        page.get_by_role("columnheader", name="Time").get_by_role("button").click()
        page.locator(
            '[role=columnheader][aria-sort="descending"], [role=columnheader][aria-sort="ascending"]'
        ).wait_for()
        page.get_by_role("columnheader", name="Time").get_by_role("button").click()
        page.locator('[role=columnheader][aria-sort="descending"]').wait_for()
        page.locator('.rw-row[aria-rowindex="2"]', has_text="7:0").wait_for()

        assert "sort=seconds" in page.url


def test_where_the_time_went_is_shown_for_the_run_and_the_rollout(page: Any, make: Make) -> None:
    """A chart of the phases on the run's page with its numbers as a table, and a bar on the rollout's."""
    slow = [timed_record(task, 4.0 + task, queue=0.5, model=2.5 + task, tools=0.6, verify=0.4) for task in range(8)]
    with served_page(make(*slow)) as url:
        page.goto(url)
        card = page.locator(".card", has=page.get_by_role("heading", name="Time by phase"))
        card.get_by_role("button", name="View as table").click()
        assert "0.4\xa0s" in card.locator("tr", has_text="verify").inner_text()
        keep(page, "latency")
        page.goto(f"{url}#/run/0/rollout/3/0")
        page.locator(".rhead .timebar").wait_for()

        assert page.locator(".rhead .timebar i").count() == 4
        assert "verify 0.4" in (page.locator(".rhead .timebar").get_attribute("aria-label") or "").replace("\xa0", " ")


def test_which_tasks_flipped_is_answered_by_the_comparison(page: Any, make: Make) -> None:
    """The question after a change is which tasks became better or worse."""
    with served_page(twenty(make, "first"), twenty(make, "second", solved=2)) as url:
        page.goto(url)
        page.locator(".runs-table").wait_for()
        page.get_by_label("Select first").check()
        page.get_by_label("Select second").check()
        page.get_by_role("link", name="Compare 2 selected").click()
        page.get_by_role("heading", name="Flips").wait_for()
        keep(page, "comparison")

        assert "compare/0,1" in page.url


def test_what_it_cost_stands_on_the_first_page(page: Any, make: Make) -> None:
    """Tokens of the run are in its identity strip; the longest rollouts can be sorted by them."""
    with served_page(twenty(make)) as url:
        page.goto(f"{url}#/run/0")
        page.locator(".facts", has_text="Tokens").wait_for()

        assert "in" in page.locator(".facts div", has_text="Tokens").inner_text()


def test_a_judge_can_be_read(page: Any, make: Make) -> None:
    """Its transcript opens under the verdict, as text."""
    question = {"input": [{"role": "user", "content": "Is <b>0.5</b> the same as 1/2?"}]}
    answer = {"output": [{"role": "assistant", "content": [{"type": "output_text", "text": "[[A=B]]"}]}]}
    judged = record(
        judge_evaluations=[{"responses_create_params": question, "response": answer, "verdict_label": "[[A=B]]"}]
    )
    with served_page(make(judged)) as url:
        page.goto(f"{url}#/run/0/rollout/0/0")
        page.locator(".judge", has_text="[[A=B]]").wait_for()

        page.get_by_text("Is <b>0.5</b> the same as 1/2?").first.wait_for()


def test_a_filter_with_a_mistake_replaces_nothing(page: Any, make: Make) -> None:
    """The rows of the last valid filter stay, the word is underlined, and one click repairs it."""
    with served_page(twenty(make)) as url:
        page.goto(f"{url}#/run/0/rollouts")
        page.locator("#range", has_text="of 20").wait_for()
        page.fill("#filter", "rewrd < 1")
        page.get_by_role("alert").wait_for()
        assert page.locator(".ferr u").inner_text() == "rewrd"
        assert page.locator(".rw-row").count() > 5
        page.get_by_role("button", name="Use reward").click()
        page.locator("#range", has_text="of 7").wait_for()

        assert page.locator("#filter").input_value() == "reward < 1"


def test_an_old_address_with_a_mistake_still_shows_the_reason(page: Any, make: Make) -> None:
    """Links that were sent earlier open, whatever they hold."""
    with served_page(twenty(make)) as url:
        page.goto(f"{url}#/run/0/rollouts?where=rewrd<1")
        page.get_by_role("alert").wait_for()

        assert "rewrd" in page.get_by_role("alert").inner_text()
        page.locator(".rw-row", has_text="What is 0 + 1?").first.wait_for()
        assert "The table shows all rollouts." in page.get_by_role("alert").inner_text()
        page.fill("#filter", "reward < 1")
        page.locator("#range", has_text="of 7").wait_for()
        page.fill("#filter", "rewrd < 1")
        page.get_by_text("The table still shows the last valid filter.").wait_for()
        page.locator("#range", has_text="of 7").wait_for()


def test_a_new_filter_is_read_from_its_first_row(page: Any, make: Make) -> None:
    """The selected row may match, far below; a reader of a new result expects its beginning."""
    with served_page(make(*[record(task, 0, 1.0) for task in range(300)])) as url:
        page.goto(f"{url}#/run/0/rollouts")
        page.locator(".rw-row .rw").first.wait_for()
        page.keyboard.press("End")
        page.locator("#range", has_text="– 300 of").wait_for()
        page.locator('.rw-row[aria-selected="true"] .rw').wait_for()
        page.fill("#filter", "task >= 100")
        page.locator(".status", has_text="200 of 300").wait_for()

        page.locator("#range", has_text="1 –").wait_for()


def test_a_filter_without_a_result_says_which_part_is_to_blame(page: Any, make: Make) -> None:
    """An empty table would look like a run without such rollouts."""
    with served_page(twenty(make)) as url:
        page.goto(f"{url}#/run/0/rollouts?where=reward+%3E+5+and+turns+%3E+0")
        page.get_by_text("No rollout matches this filter").wait_for()
        page.get_by_role("button", name="Keep only").click()
        page.locator("#range", has_text="of 19").wait_for()


def test_a_run_that_goes_on_is_announced_and_not_pushed_under_the_pointer(page: Any, make: Make) -> None:
    """Users watch a run while it collects; the order of the rows never changes while they look."""
    index = twenty(make)
    with served_page(index) as url:
        page.goto(f"{url}#/run/0/rollouts")
        page.locator("#range", has_text="of 20").wait_for()
        append(index.run.output, record(10, 0), record(10, 1))
        page.get_by_text("2 new rows").click()

        page.locator("#range", has_text="of 22").wait_for()


def test_a_huge_answer_opens_at_once_and_can_be_read_on(page: Any, make: Make) -> None:
    """A runaway answer must not freeze the page, and its end must be readable."""
    with served_page(make(record(0, 0, answer="x" * 50_000_000))) as url:
        page.goto(f"{url}#/run/0/rollout/0/0")
        page.get_by_role("button", name="show more").first.click(timeout=60_000)

        page.locator(".prose", has_text="x" * 100).last.wait_for()
        shown = page.evaluate("[...document.querySelectorAll('.prose')].at(-1).textContent.length")
        assert 20_000 <= shown <= 100_000


def long_record(turns: int) -> dict[str, Any]:
    """A rollout with many turns, of a text and a tool call each."""
    call = {"type": "function_call", "name": "add", "arguments": "{}"}
    output = []
    for number in range(turns):
        text = [{"type": "output_text", "text": f"step {number} of the walk"}]
        output += [{"type": "message", "role": "assistant", "content": text}, call | {"call_id": f"c{number}"}]
        output += [{"type": "function_call_output", "call_id": f"c{number}", "output": str(number)}]
    long = record(0, 0)
    long["response"]["output"] = output
    return long


def test_a_long_conversation_has_an_outline(page: Any, make: Make) -> None:
    """Two hundred turns are found by their number, also those of another part of the conversation."""
    with served_page(make(long_record(220))) as url:
        page.goto(f"{url}#/run/0/rollout/0/0")
        page.locator(".outline").wait_for()
        page.locator(".outline button").nth(209).click()
        page.locator("#turn-210").wait_for()

        assert "turn=210" in page.url


def test_the_outline_follows_the_reader(page: Any, make: Make) -> None:
    """In the middle of 220 turns, the outline shows which one is read."""
    with served_page(make(long_record(220))) as url:
        page.goto(f"{url}#/run/0/rollout/0/0?start=200")
        marked = page.locator('.outline button[aria-current="true"]')
        marked.wait_for()
        first = int(marked.locator(".num").first.inner_text())
        page.locator(f"#turn-{first + 9}").evaluate("turn => turn.scrollIntoView()")
        page.locator('.outline button[aria-current="true"]', has_text=f"{first + 9}").wait_for()

        assert first > 60


def test_the_outline_marks_the_turn_that_was_chosen(page: Any, make: Make) -> None:
    """The last turns cannot be scrolled to the top; the mark must not jump from the chosen one to the last."""
    with served_page(make(long_record(120))) as url:
        page.goto(f"{url}#/run/0/rollout/0/0")
        page.locator(".outline button").nth(118).click()
        page.locator('.outline button[aria-current="true"]', has_text="119").wait_for()
        assert page.evaluate("scrollY + innerHeight >= document.documentElement.scrollHeight - 2"), "the end is visible"
        page.wait_for_function("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

        assert page.locator('.outline button[aria-current="true"] .num').first.inner_text() == "119"


@pytest.mark.parametrize(("limit", "shown"), [(7200, "7,200"), (12.75, "12.75")])
def test_the_verdict_names_the_turn_and_the_unit_of_its_limits(page: Any, make: Make, limit: float, shown: str) -> None:
    """The answer is looked up in its turn; a number of seconds is not a number of tokens."""
    index = make(record(0, 0, 1.0, answer="The sum is 1.", _ng_seconds=12.5))
    run_path_for(index.run.output).write_text(json.dumps({"limits": {"rollout_timeout_seconds": limit}}))
    with served_page(index) as url:
        page.goto(f"{url}#/run/0/rollout/0/0")
        page.get_by_role("link", name="turn 2").click()
        page.get_by_text(f"12.5 of {shown} s").wait_for()


def test_raw_json_has_token_ids_in_one_line(page: Any, make: Make) -> None:
    """A record for training was thousands of lines of one number each; texts with brackets stay as they are."""
    text = "a [\n  1,\n  2\n] b"
    with served_page(make(record(0, 0, 1.0, answer=text, ids=[1, -2, 3.5e-07], empty=[]))) as url:
        page.goto(f"{url}#/run/0/rollout/0/0?tab=json")
        page.locator("#raw-text", has_text="[1, -2, 3.5e-7]").wait_for()
        raw = page.locator("#raw-text pre").inner_text()

        assert json.loads(raw)["response"]["output"][-1]["content"][0]["text"] == text


def test_raw_json_of_many_negative_numbers_opens_at_once(page: Any, make: Make) -> None:
    """Log probabilities are negative, and end with a text where JSON has no number; the page must not freeze."""
    with served_page(make(record(0, 0, 1.0, logprobs=[-0.5] * 40 + ["-Infinity"]))) as url:
        page.goto(f"{url}#/run/0/rollout/0/0?tab=json")
        page.locator("#raw-text", has_text="-Infinity").wait_for()


def test_a_rollout_that_is_missing_leads_to_those_of_its_run(page: Any, make: Make) -> None:
    """A link to a rollout of another run, or of a run that began again, is answered with what is there."""
    with served_page(twenty(make)) as url:
        page.goto(f"{url}#/run/0/rollout/99/0")
        page.get_by_text("This run has no task 99, repeat 0.").wait_for()
        page.get_by_role("link", name="Rollouts of this run").click()
        page.locator("#range", has_text="of 20").wait_for()


def test_a_bundle_has_the_filters_of_the_server(page: Any, make: Make, tmp_path: Path) -> None:
    """Findings and saved filters of a shared bundle lead to their rollouts, whichever column they name."""
    index = make(record(41, 0, 0.0, answer="It is 42.", extracted_answer=""), record(42, 0, 1.0, answer="It is 43."))
    export_bundle([index], tmp_path / "bundle")
    start = (tmp_path / "bundle" / "index.html").as_uri()
    page.goto(f"{start}#/run/0/rollouts?where=no_answer+%3D%3D+1")
    page.locator("#range", has_text="1 – 1 of 1").wait_for()
    page.get_by_role("button", name="Verifier wrong?").click()
    page.locator("#range", has_text="1 – 1 of 1").wait_for()
    unknown = "all => all.filter(each => { try { gymView.filter.compile(`${each} == 1`) } catch { return true } })"
    assert page.evaluate(unknown, sorted(COLUMNS)) == []


@pytest.mark.parametrize("is_bundle", [False, True])
def test_find_reaches_the_other_parts_of_a_long_conversation(
    page: Any, make: Make, tmp_path: Path, is_bundle: bool
) -> None:
    """ "0 of 0" for a text that stands in turn 200 is a wrong answer."""
    index = make(long_record(220))
    export_bundle([index], tmp_path / "bundle")
    with served_page(index) as url:
        start = (tmp_path / "bundle" / "index.html").as_uri() if is_bundle else url
        page.goto(f"{start}#/run/0/rollout/0/0")
        page.locator("#turn-1").wait_for()
        page.keyboard.press("/")
        page.keyboard.type("Step 199 of")
        page.get_by_text("and in 1 item of other parts").wait_for()
        page.keyboard.press("Enter")
        page.locator("#turn-200").wait_for()
        page.locator(".cfind .count", has_text="1 of 1").wait_for()


def test_find_and_unfold_all_reach_folded_outputs(page: Any, make: Make) -> None:
    """The line that explains a failure is often the last one of a long output."""
    stored = record(0, 0)
    stored["response"]["output"][2]["output"] = "\n".join(f"line {number}" for number in range(60))
    with served_page(make(stored)) as url:
        page.goto(f"{url}#/run/0/rollout/0/0")
        page.get_by_role("button", name="Show all 60 lines").wait_for()
        page.keyboard.press("/")
        page.keyboard.type("line 57")
        page.locator(".cfind .count", has_text="1 of 1").wait_for()


def test_a_failed_rollout_ends_with_the_call_that_failed(page: Any, make: Make) -> None:
    """Reading down, one sees at which turn it went wrong; nothing says that a verifier extracted nothing."""
    with served_page(twenty(make)) as url:
        page.goto(f"{url}#/run/0/rollout/9/1?where=outcome+%3D%3D+%22failed%22")
        page.locator(".failed-call", has_text="too slow").wait_for()

        assert "nothing" not in page.locator(".verdict").inner_text()


def test_next_failed_keeps_the_filter(page: Any, make: Make) -> None:
    """A reader of failures goes back to the table with the same filter."""
    run = make(record(0, 0), failures=(failure(1, 0), failure(2, 0)))
    with served_page(run) as url:
        page.goto(f"{url}#/run/0/rollout/1/0?where=task+%3E+0")
        page.locator("h1", has_text="Task 1").wait_for()
        page.keyboard.press("f")
        page.locator("h1", has_text="Task 2").wait_for()

        assert "where=task" in page.url


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_phones_and_desks_by_day_and_night(browser: Any, make: Make, width: int, scheme: str) -> None:
    """A horizontal scroll bar or unreadable colours make the page useless there."""
    with served_page(twenty(make)) as url:
        context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
        page = context.new_page()
        for view, shown in (("", ".hero"), ("/rollouts", ".rw-row"), ("/rollout/0/0", ".turn"), ("/tasks", ".strip a")):
            page.goto(f"{url}#/run/0{view}")
            page.locator(shown).first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
            keep(page, f"{view.split('/')[-1] or 'overview'}-{width}-{scheme}")
        context.close()


def test_a_bundle_opens_from_disk(page: Any, make: Make, tmp_path: Path) -> None:
    """Shared by mail, opened on a machine without Python."""
    export_bundle([twenty(make)], tmp_path / "bundle")

    page.goto((tmp_path / "bundle" / "index.html").as_uri())
    page.get_by_text("Mean reward").first.wait_for()
    page.get_by_label("Run", exact=True).get_by_role("link", name="Rollouts").click()
    page.fill("#filter", 'reward < 1 and "nothing" in extracted')
    page.locator("#range", has_text="of 7").wait_for()
    page.locator(".rw-row").first.dblclick()
    page.locator("h1", has_text="Task 0, repeat 0").wait_for()
    page.keyboard.press("j")
    page.locator("h1", has_text="Task 0, repeat 1").wait_for()
    page.keyboard.press("4")
    page.locator("#raw-text", has_text="_ng_task_index").wait_for()
    page.goto((tmp_path / "bundle" / "index.html").as_uri() + "#/run/0/tasks")
    page.locator(".strip a").first.wait_for()


def test_a_missing_rollout_is_explained(page: Any, make: Make) -> None:
    """A link into another run must not be an empty page."""
    with served_page(make(record(), failures=(failure(1),))) as url:
        page.goto(f"{url}#/run/0/rollout/77/0")

        assert "no task 77" in page.get_by_role("alert").inner_text()

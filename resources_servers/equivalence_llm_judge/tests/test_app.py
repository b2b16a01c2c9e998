"""The judge decides, in both orders; nothing in an answer can decide for it; a judge that fails is no verdict."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from nemo_gym.environment.audit_cheats import injections
from nemo_gym.environment.audit_server import ScriptedJudge, scripted_judges
from nemo_gym.environment.verifier_fixture import exercise_verifier_fixture, offline_server, said
from resources_servers.equivalence_llm_judge.app import (
    VERIFIER_FIXTURE,
    EquivalenceServer,
    EquivalenceVerifyRequest,
)
from resources_servers.equivalence_llm_judge.audit import DIFFERENT, EQUAL, cheats, judge, odd_forms, oracle, wrong
from resources_servers.equivalence_llm_judge.generate import rows
from resources_servers.equivalence_llm_judge.prompts import TEMPLATE, prompt, verdict_label

LABELS = (EQUAL, DIFFERENT)
REGEX = r"(?im)^[\s*_#>-]*(?:final )?answer[*_`]*\s*:[*_`]*[ \t]*(\S.*)$"
ROW = {"responses_create_params": {"input": "Which river is it?"}, "expected_answer": "the Danube"}
ROWS = rows(9, seed=1)
DATA = Path(__file__).parent.parent / "data"


class Judged:
    """A server whose judge is a function."""

    def __init__(self, client: Any, scripted: ScriptedJudge) -> None:
        self.client, self.scripted = client, scripted
        self.prompts: list[str] = []
        self.served: dict[str, TestClient] = {}

    def server(self, settings: dict[str, Any]) -> TestClient:
        key = json.dumps(settings, sort_keys=True)
        if key not in self.served:
            ref = {"type": "responses_api_models", "name": "judge"}
            server = offline_server(EquivalenceServer, judge_model_server=ref, **settings)
            server.server_client = self.client
            self.served[key] = TestClient(server.setup_webserver())
        return self.served[key]

    def __call__(
        self, answer: Callable[[str], str], text: str, row: dict[str, Any] = ROW, **settings: Any
    ) -> dict[str, Any]:
        def recorded(asked: str) -> str:
            self.prompts.append(asked)
            return answer(asked)

        self.prompts, self.scripted._answer = [], recorded
        reply = self.server(settings).post("/verify", json={**row, "response": said(text)})
        assert reply.status_code == 200, reply.text
        return dict(reply.json())


@pytest.fixture
def judged() -> Iterator[Judged]:
    with scripted_judges(["judge"], "equivalence.tests") as (client, judges):
        yield Judged(client, judges[0])


def test_the_oracle_and_odd_forms_score_full_with_an_honest_judge(judged: Judged) -> None:
    """A right answer judged wrong is a lesson lost."""
    forms = [(row, form) for row in ROWS for form in [oracle(row), *odd_forms(row)]]
    settings: dict[str, Any] = {"response_extract_regex": REGEX, "check_twice_swap": True}

    assert len({str(form) for _, form in forms}) >= 20
    assert [form for row, form in forms if judged(judge, str(form), row, **settings)["reward"] != 1.0] == []


def test_wrong_answers_and_cheats_score_nothing_with_an_honest_judge(judged: Judged) -> None:
    """Reward without an answer is what a policy learns first."""
    for row in ROWS[:3]:
        for form in [*wrong(row), *(reply for _, reply in cheats(row)), "", row["question"]]:
            assert judged(judge, str(form), row, response_extract_regex=REGEX)["reward"] == 0.0


@pytest.mark.parametrize("text", ["", " ", ":", "...", "\u200b", "Which river is it?", "WHICH RIVER IS IT", "<think>x"])
def test_nothing_is_not_shown_to_a_judge(judged: Judged, text: str) -> None:
    """Strong judges have called a lone colon right."""
    result = judged(lambda _prompt: EQUAL, text)

    assert (result["reward"], result["extracted_answer"], judged.prompts) == (0.0, None, [])
    assert result["unparsed_reason"]


def test_one_order_is_enough_unless_both_are_asked_for(judged: Judged) -> None:
    """A judge that prefers whatever stands first is no judge."""

    def swayed(text: str) -> str:
        return EQUAL if text.index("the Danube") < text.index("Donau") else DIFFERENT

    once = judged(swayed, "Donau")
    twice = judged(swayed, "Donau", check_twice_swap=True)
    in_part = judged(swayed, "Donau", check_twice_swap=True, reward_if_swap_fails=0.25)

    assert (once["reward"], twice["reward"], in_part["reward"]) == (1.0, 0.0, 0.25)
    assert [one["verdict_label"] for one in twice["judge_evaluations"]] == [EQUAL, DIFFERENT]


def test_the_whole_reply_is_tried_when_asked_for(judged: Judged) -> None:
    """Worth half, because the agreed form was not kept."""

    def honest(text: str) -> str:
        return EQUAL if "Danube" in text.split("<answer-B")[1] else DIFFERENT

    settings = {"response_extract_regex": REGEX, "check_full_generation_on_fail": True}
    text = "It must be the Danube.\nAnswer: see above"

    assert judged(honest, text, **settings)["reward"] == 0.5
    assert judged(honest, "the Danube", **settings)["reward"] == 0.5
    assert judged(honest, text, **settings, reward_if_full_generation_succeeds=0.2)["reward"] == 0.2
    assert judged(honest, text, response_extract_regex=REGEX)["reward"] == 0.0


def test_what_is_extracted_depends_on_row_settings_and_length(judged: Judged) -> None:
    """Long references are compared with the whole reply: an extract would cut what they ask for."""
    text = "Answer: A\nPick: B"
    own = {**ROW, "template_metadata": {"output_regex": r"Pick: (\w)"}}
    long = {**ROW, "expected_answer": "x" * 121}

    def extract(row: dict[str, Any], **settings: Any) -> str:
        return str(judged(lambda _prompt: EQUAL, text, row, **settings)["extracted_answer"])

    assert extract(ROW) == text
    assert extract(ROW, response_extract_regex=REGEX) == "A"
    assert extract(own, response_extract_regex=REGEX) == "B"
    assert extract(own, response_extract_regex=REGEX, use_per_record_regex=False) == "A"
    assert extract(long, response_extract_regex=REGEX) == text
    assert extract(long, response_extract_regex=REGEX, extraction_length_threshold=None) == "A"


def test_the_question_is_the_row_s_or_the_user_s_last_words(judged: Judged) -> None:
    """A judge that does not know the question cannot judge."""
    turns = [{"role": "user", "content": "Q: one? [end]"}, {"role": "assistant", "content": "two"}]
    row = {**ROW, "responses_create_params": {"input": turns}}
    judged(lambda _prompt: EQUAL, "x", row, question_extract_regex=r"Q: (.*?) \[")
    assert "\none?\n" in judged.prompts[0]

    judged(lambda _prompt: EQUAL, "x", {**row, "question": "three?"})
    assert "\nthree?\n" in judged.prompts[0]


@pytest.mark.parametrize("text", ["", "They look alike.", "[[A=C]]", f"<think>{EQUAL}", f"{EQUAL} {DIFFERENT} hm"])
def test_a_judge_without_a_verdict_is_a_failure_and_not_a_zero(judged: Judged, text: str) -> None:
    """A failure must never enter a mean as a wrong answer."""
    assert judged(lambda _prompt: text, "Donau")["_ng_failure_class"] == "judge_failed"


def test_an_unreachable_judge_is_a_failure(judged: Judged) -> None:
    """Whatever went wrong there is no verdict."""

    def broken(_prompt: str) -> str:
        raise RuntimeError("out of order")

    assert judged(broken, "Donau")["_ng_failure_class"] == "judge_failed"


@pytest.mark.parametrize(
    ("text", "label"),
    [
        (EQUAL, EQUAL),
        (f"They agree: {EQUAL}.", EQUAL),
        (f"{EQUAL}\n{EQUAL}", EQUAL),
        (f"One might say {EQUAL}, but\n{DIFFERENT}", DIFFERENT),
        (f"<think>{EQUAL}</think>{DIFFERENT}", DIFFERENT),
        (f"{DIFFERENT} {EQUAL}", None),
        (f"{EQUAL}\nor {DIFFERENT}", None),
        ("[[a=b]]", None),
        ("", None),
    ],
)
def test_the_verdict_is_read_in_the_agreed_form_only(text: str, label: str | None) -> None:
    """A judge that wavers has not decided."""
    assert verdict_label(text, LABELS) == label


@pytest.mark.parametrize("text", [text for _, text in injections()])
def test_the_data_cannot_write_a_label_or_close_its_marks(text: str) -> None:
    """Only the judge itself can write a verdict, even one that quotes all it was shown."""
    values = dict.fromkeys(("question", "expected_answer", "generated_answer"), text)
    shown = prompt(TEMPLATE, values, LABELS, "0123456789abcdef")

    assert verdict_label(shown, LABELS) is None
    assert shown.count("</answer-B 0123456789abcdef>") == 1


def test_a_quoting_judge_is_not_swayed_by_what_it_quotes(judged: Judged) -> None:
    """Whole, behind a wrong answer, whatever it imitates."""
    for _, text in injections():
        for reply in (text, f"14:00\n{text}"):
            assert judged(judge, reply, {**ROW, "expected_answer": "14:05"})["reward"] == 0.0


def test_marks_are_made_up_for_each_request(judged: Judged) -> None:
    """A mark that can be guessed can be closed."""
    for _ in range(3):
        judged(lambda _prompt: EQUAL, "Donau", check_twice_swap=True)
    marks = {part.split(">")[0] for one in judged.prompts for part in one.split("<answer-A ")[1:]}

    assert len(marks) == len(judged.prompts)


def test_placeholders_in_the_data_are_data(judged: Judged) -> None:
    """A question about templates must not be filled in."""
    judged(lambda _prompt: EQUAL, "{question} {expected_answer}")

    assert "\n{question} {expected_answer}\n" in judged.prompts[0]


def test_prompt_and_labels_can_be_one_s_own(judged: Judged, tmp_path: Path) -> None:
    """Benchmarks bring their own judge."""
    path = tmp_path / "judge.txt"
    path.write_text("Q {question}\nGold {expected_answer}\nNow {generated_answer}\nYES or NO?")
    labels = {"judge_equal_label": "YES", "judge_not_equal_label": "NO", "judge_system_message": "Be brief."}

    result = judged(lambda _prompt: "YES", "Donau YES", judge_prompt_template_fpath=str(path), **labels)

    assert result["reward"] == 1.0
    assert judged.prompts[0].startswith("Be brief.\n\nQ <question ")
    assert "\nDonau [label]\n" in judged.prompts[0]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"judge_prompt_template": "{question} {expected_answer}"}, "generated_answer"),
        ({"judge_prompt_template_fpath": "no/such/file"}, "no file"),
        ({"judge_prompt_template": TEMPLATE, "judge_prompt_template_fpath": "x"}, "not both"),
        ({"judge_equal_label": "same", "judge_not_equal_label": "not same"}, "part of the other"),
        ({"response_extract_regex": "("}, "regular expression"),
        ({"judge_model_server": None}, "judge_model_server"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(settings: dict[str, Any], problem: str) -> None:
    """At the start, not at the thousandth rollout."""
    ref = {"judge_model_server": {"type": "responses_api_models", "name": "judge"}}
    with pytest.raises((ValidationError, ValueError), match=problem):
        offline_server(EquivalenceServer, **{**ref, **settings})


@pytest.mark.parametrize(
    "broken", [{"expected_answer": ""}, {"expected_answer": 5}, {"template_metadata": {"output_regex": "("}}]
)
def test_a_malformed_row_is_a_clear_422(broken: dict[str, Any]) -> None:
    """The data is at fault, and must not look like a wrong answer."""
    ref = {"type": "responses_api_models", "name": "judge"}
    client = TestClient(offline_server(EquivalenceServer, judge_model_server=ref).setup_webserver())

    assert client.post("/verify", json={**ROW, **broken, "response": said("x")}).status_code == 422


def test_twenty_verdicts_at_once_are_the_same() -> None:
    """Grading has no memory."""
    body = EquivalenceVerifyRequest.model_validate({**ROWS[0], "response": said(str(oracle(ROWS[0])))})
    ref = {"type": "responses_api_models", "name": "judge"}

    async def all_at_once() -> list[float]:
        with scripted_judges(["judge"], "equivalence.crowd") as (client, judges):
            judges[0]._answer = judge
            server = offline_server(EquivalenceServer, judge_model_server=ref, check_twice_swap=True)
            server.server_client = client
            return [result.reward for result in await asyncio.gather(*(server.verify(body) for _ in range(20)))]

    assert asyncio.run(all_at_once()) == [1.0] * 20


def test_the_example_data_is_what_the_generator_writes() -> None:
    """Committed data that drifts from its source is data nobody can explain."""
    lines = (DATA / "example.jsonl").read_text("utf-8").splitlines()

    assert [json.loads(line) for line in lines] == rows(5, seed=0)


def test_the_example_rollouts_get_the_same_verdict_today(judged: Judged) -> None:
    """Committed rollouts that no longer hold mislead whoever looks at them."""
    for line in (DATA / "example_rollouts.jsonl").read_text("utf-8").splitlines():
        rollout = json.loads(line)
        text = rollout["response"]["output"][-1]["content"][0]["text"]
        again = judged(judge, text, rollout, response_extract_regex=REGEX, check_twice_swap=True)
        assert (again["reward"], again["extracted_answer"]) == (rollout["reward"], rollout["extracted_answer"])


def test_the_verifier_decides_every_case_as_written() -> None:
    """`gym env test` tries the same cases."""
    results = asyncio.run(exercise_verifier_fixture(VERIFIER_FIXTURE, seeded=True, reward_range=(0, 1), best=1.0))

    assert [result for result in results if not result.is_good] == []

"""Prove the judged verifier: the judge alone decides, in both orders, and a failing judge gives no verdict."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from nemo_gym.authoring.audit_server import ScriptedJudge, scripted_judges
from nemo_gym.authoring.cheats import injections
from nemo_gym.authoring.verifier_cases import offline_server
from nemo_gym.authoring.verifier_proof import VerifierProof, verify_reply
from nemo_gym.grading.judge_labels import verdict_label
from resources_servers.equivalence_llm_judge.app import EquivalenceServer
from resources_servers.equivalence_llm_judge.audit import DIFFERENT, EQUAL, judge
from resources_servers.equivalence_llm_judge.prompts import TEMPLATE, fill_prompt

LABELS = (EQUAL, DIFFERENT)
REGEX = r"(?im)^[\s*_#>-]*(?:final )?answer[*_`]*\s*:[*_`]*[ \t]*(\S.*)$"
ROW = {"responses_create_params": {"input": "Which river is it?"}, "expected_answer": "the Danube"}
JUDGE_REF = {"type": "responses_api_models", "name": "judge"}


class TestProof(VerifierProof):
    """Oracle, odd forms, wrong answers, cheats, injections, failing judges, broken rows and example data."""

    folder = Path(__file__).parents[1]


class JudgedVerifier:
    """Verify texts with a function as the judge, and record its prompts."""

    def __init__(self, client: Any, scripted: ScriptedJudge) -> None:
        self.client, self.scripted = client, scripted
        self.prompts: list[str] = []
        self.clients: dict[str, TestClient] = {}

    def __call__(
        self, answer: Callable[[str], str], text: str, row: dict[str, Any] = ROW, **settings: Any
    ) -> dict[str, Any]:
        def record_and_answer(prompt: str) -> str:
            self.prompts.append(prompt)
            return answer(prompt)

        self.prompts = []
        self.scripted.set_answer(record_and_answer)
        return verify_reply(self._http(settings), row, text)

    def _http(self, settings: dict[str, Any]) -> TestClient:
        key = json.dumps(settings, sort_keys=True)
        if key not in self.clients:
            server = offline_server(EquivalenceServer, judge_model_server=JUDGE_REF, **settings)
            server.server_client = self.client
            self.clients[key] = TestClient(server.setup_webserver())
        return self.clients[key]


@pytest.fixture
def verify() -> Iterator[JudgedVerifier]:
    with scripted_judges(["judge"], "equivalence.tests") as (client, judges):
        yield JudgedVerifier(client, judges[0])


@pytest.mark.parametrize("text", ["", " ", ":", "...", "\u200b", "Which river is it?", "WHICH RIVER IS IT", "<think>x"])
def test_an_empty_answer_does_not_reach_the_judge(verify: JudgedVerifier, text: str) -> None:
    """Strong judges have accepted a single colon."""
    result = verify(lambda _prompt: EQUAL, text)

    assert (result["reward"], result["extracted_answer"], verify.prompts) == (0.0, None, [])
    assert result["unparsed_reason"]


def test_both_orders_count_only_if_configured(verify: JudgedVerifier) -> None:
    """A judge that prefers the first answer must not decide."""

    def prefer_reference_first(text: str) -> str:
        return EQUAL if text.index("the Danube") < text.index("Donau") else DIFFERENT

    once = verify(prefer_reference_first, "Donau")
    twice = verify(prefer_reference_first, "Donau", check_twice_swap=True)
    in_part = verify(prefer_reference_first, "Donau", check_twice_swap=True, reward_if_swap_fails=0.25)

    assert (once["reward"], twice["reward"], in_part["reward"]) == (1.0, 0.0, 0.25)
    assert [one["verdict_label"] for one in twice["judge_evaluations"]] == [EQUAL, DIFFERENT]


def test_the_whole_reply_is_compared_if_configured(verify: JudgedVerifier) -> None:
    """It earns half, because the reply does not have the agreed form."""

    def honest(text: str) -> str:
        return EQUAL if "Danube" in text.split("<answer-B")[1] else DIFFERENT

    settings = {"response_extract_regex": REGEX, "check_full_generation_on_fail": True}
    text = "It must be the Danube.\nAnswer: see above"

    assert verify(honest, text, **settings)["reward"] == 0.5
    assert verify(honest, "the Danube", **settings)["reward"] == 0.5
    assert verify(honest, text, **settings, reward_if_full_generation_succeeds=0.2)["reward"] == 0.2
    assert verify(honest, text, response_extract_regex=REGEX)["reward"] == 0.0


def test_the_extracted_answer_depends_on_row_settings_and_length(verify: JudgedVerifier) -> None:
    """Long references are compared with the whole reply: an extract would lose a part of the answer."""
    text = "Answer: A\nPick: B"
    own = {**ROW, "template_metadata": {"output_regex": r"Pick: (\w)"}}
    long = {**ROW, "expected_answer": "x" * 121}

    def extract(row: dict[str, Any], **settings: Any) -> str:
        return str(verify(lambda _prompt: EQUAL, text, row, **settings)["extracted_answer"])

    assert extract(ROW) == text
    assert extract(ROW, response_extract_regex=REGEX) == "A"
    assert extract(own, response_extract_regex=REGEX) == "B"
    assert extract(own, response_extract_regex=REGEX, use_per_record_regex=False) == "A"
    assert extract(long, response_extract_regex=REGEX) == text
    assert extract(long, response_extract_regex=REGEX, extraction_length_threshold=None) == "A"


def test_the_question_is_a_field_of_the_row_or_the_user_s_last_message(verify: JudgedVerifier) -> None:
    """A judge that does not know the question cannot judge."""
    turns = [{"role": "user", "content": "Q: one? [end]"}, {"role": "assistant", "content": "two"}]
    row = {**ROW, "responses_create_params": {"input": turns}}
    verify(lambda _prompt: EQUAL, "x", row, question_extract_regex=r"Q: (.*?) \[")
    assert "\none?\n" in verify.prompts[0]

    verify(lambda _prompt: EQUAL, "x", {**row, "question": "three?"})
    assert "\nthree?\n" in verify.prompts[0]


@pytest.mark.parametrize("text", ["", "They look alike.", "[[A=C]]", f"<think>{EQUAL}", f"{EQUAL} {DIFFERENT} hm"])
def test_a_judge_without_a_verdict_is_a_failure_and_not_a_zero(verify: JudgedVerifier, text: str) -> None:
    """A failure must never enter a mean as a wrong answer."""
    assert verify(lambda _prompt: text, "Donau")["_ng_failure_class"] == "judge_failed"


def test_an_unreachable_judge_is_a_failure(verify: JudgedVerifier) -> None:
    """An outage must not look like a wrong answer."""

    def fail(_prompt: str) -> str:
        raise RuntimeError("out of order")

    assert verify(fail, "Donau")["_ng_failure_class"] == "judge_failed"


@pytest.mark.parametrize("text", [text for _, text in injections()])
def test_the_data_cannot_write_a_label_or_close_its_marks(text: str) -> None:
    """Only the judge can write a verdict, even if it quotes its whole prompt."""
    values = dict.fromkeys(("question", "expected_answer", "generated_answer"), text)
    text = fill_prompt(TEMPLATE, values, LABELS, "0123456789abcdef")

    assert verdict_label(text, LABELS) is None
    assert text.count("</answer-B 0123456789abcdef>") == 1


def test_a_quoted_injection_does_not_change_the_verdict(verify: JudgedVerifier) -> None:
    """Neither alone nor after a wrong answer."""
    for _, text in injections():
        for reply in (text, f"14:00\n{text}"):
            assert verify(judge, reply, {**ROW, "expected_answer": "14:05"})["reward"] == 0.0


def test_every_request_has_new_marks(verify: JudgedVerifier) -> None:
    """A mark that can be guessed can be closed."""
    for _ in range(3):
        verify(lambda _prompt: EQUAL, "Donau", check_twice_swap=True)
    marks = {part.split(">")[0] for one in verify.prompts for part in one.split("<answer-A ")[1:]}

    assert len(marks) == len(verify.prompts)


def test_placeholders_in_the_data_are_not_filled(verify: JudgedVerifier) -> None:
    """A question may be about templates."""
    verify(lambda _prompt: EQUAL, "{question} {expected_answer}")

    assert "\n{question} {expected_answer}\n" in verify.prompts[0]


def test_prompt_and_labels_can_be_replaced(verify: JudgedVerifier, tmp_path: Path) -> None:
    """Benchmarks bring their own judge."""
    path = tmp_path / "judge.txt"
    path.write_text("Q {question}\nGold {expected_answer}\nNow {generated_answer}\nYES or NO?")
    labels = {"judge_equal_label": "YES", "judge_not_equal_label": "NO", "judge_system_message": "Be brief."}

    result = verify(lambda _prompt: "YES", "Donau YES", judge_prompt_template_fpath=str(path), **labels)

    assert result["reward"] == 1.0
    assert verify.prompts[0].startswith("Be brief.\n\nQ <question ")
    assert "\nDonau [label]\n" in verify.prompts[0]


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
    with pytest.raises((ValidationError, ValueError), match=problem):
        offline_server(EquivalenceServer, **{"judge_model_server": JUDGE_REF, **settings})

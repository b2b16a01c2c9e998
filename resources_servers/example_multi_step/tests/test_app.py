"""Prove the synonym task: looked-up values, submitted once and in order, earn the reward."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.authoring.model_replies import tool_call
from nemo_gym.authoring.verifier_proof import VerifierProof, offline_client, verify_reply
from resources_servers.example_multi_step.app import LOOKUP, SUBMIT, MultiStepServer, value_of
from resources_servers.example_multi_step.generate import THESAURUS, rows

WORDS = ["blazing", "torrid", "scalding"]
VALUES = [value_of(word) for word in WORDS]
ROW = {"responses_create_params": {"input": "What are the values?"}, "expected_synonyms": WORDS}
LOOKUPS = [item for word in WORDS for item in tool_call(LOOKUP, {"synonym": word}, {})]


class TestProof(VerifierProof):
    """Oracle, odd forms, wrong answers, cheats, broken rows and example data."""

    folder = Path(__file__).parents[1]


@pytest.fixture
def http() -> TestClient:
    return offline_client(MultiStepServer)


def submission(arguments: Any) -> list[dict[str, Any]]:
    return tool_call(SUBMIT, arguments, {})


@pytest.mark.parametrize("reply", ["I do not know.", LOOKUPS], ids=["words", "no end"])
def test_a_verdict_without_a_submission_names_none(http: TestClient, reply: Any) -> None:
    """A missing submission must not look like an empty one."""
    verdict = verify_reply(http, ROW, reply)

    assert (verdict["reward"], verdict["submissions"], verdict["submitted_values"]) == (0.0, 0, None)


@pytest.mark.parametrize(
    "values",
    [[], [*VALUES, VALUES[0]], [[*VALUES]], [value + 0.5 for value in VALUES], None, str(VALUES), {"0": VALUES[0]}],
    ids=["empty", "twice", "nested", "near", "null", "string", "object"],
)
def test_any_other_list_scores_nothing(http: TestClient, values: Any) -> None:
    """Exactly the expected values, as integers."""
    assert verify_reply(http, ROW, [*LOOKUPS, *submission({"synonym_values": values})])["reward"] == 0.0


def test_near_misses_are_measured(http: TestClient) -> None:
    """A wrong order and a partial list are different lessons."""
    reordered = verify_reply(http, ROW, [*LOOKUPS, *submission({"synonym_values": VALUES[::-1]})])
    partial = verify_reply(http, ROW, [*LOOKUPS, *submission({"synonym_values": VALUES[:2]})])

    assert (reordered["reward"], reordered["is_reordered"], reordered["overlap"]) == (0.0, True, 1.0)
    assert (partial["reward"], partial["is_reordered"], partial["overlap"]) == (0.0, False, pytest.approx(2 / 3))


def test_values_that_were_not_looked_up_score_nothing(http: TestClient) -> None:
    """A value memorised in training is not the skill the task is about."""
    verdict = verify_reply(http, ROW, submission({"synonym_values": VALUES}))

    assert (verdict["reward"], verdict["looked_up"]) == (0.0, 0.0)


@pytest.mark.parametrize("text", ["", "not json", "[]", "null", '{"synonym_values": [1', '{"values": [1]}'])
def test_unreadable_arguments_score_nothing(http: TestClient, text: str) -> None:
    """A broken call is a wrong answer, never a failure of the verifier."""
    verdict = verify_reply(http, ROW, [*LOOKUPS, *submission(text)])

    assert (verdict["reward"], verdict["submissions"], verdict["submitted_values"]) == (0.0, 1, None)


def test_the_tools_answer_without_grading(http: TestClient) -> None:
    """Feedback from the submission would turn the task into a search."""
    replies = [http.post(f"/{SUBMIT}", json={"synonym_values": values}).json() for values in (VALUES, [1])]

    assert replies[0] == replies[1]
    assert http.post(f"/{LOOKUP}", json={"synonym": WORDS[0]}).json()["synonym_value"] == VALUES[0]
    assert http.get("/reverify_mode").json() == {"reverify_mode": "stateless"}


def test_the_thesaurus_has_no_ambiguous_word_or_value() -> None:
    """Two equal values would hide a wrong order; a word in two entries would have two positions."""
    synonyms = [word for entry in THESAURUS.values() for word in entry]
    words = [*THESAURUS, *synonyms]

    assert len(set(words)) == len(words)
    assert len({value_of(word) for word in synonyms}) == len(synonyms)


def test_values_are_those_of_existing_rollouts(http: TestClient) -> None:
    """Rollouts written for NeMo Gym have the sums of code points, so another value would score them 0."""
    assert http.post(f"/{LOOKUP}", json={"synonym": "Blazing"}).json()["synonym_value"] == 711
    row = {**ROW, "id": 1, "expected_synonyms": ["Blazing"], "expected_synonym_values": [711]}
    lookup = tool_call(LOOKUP, {"synonym": "Blazing"}, {"synonym": "Blazing", "synonym_value": 711})

    assert verify_reply(http, row, [*lookup, *submission({"synonym_values": [711]})])["reward"] == 1.0


def test_no_prompt_contains_a_value() -> None:
    """Values come from the tool alone."""
    for row in rows(24, seed=2):
        text = json.dumps(row)
        assert not any(str(value_of(word)) in text for word in row["expected_synonyms"])

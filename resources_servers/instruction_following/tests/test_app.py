"""Prove the verifier of instruction following: a reply scores if it follows every instruction and answers."""

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.authoring.model_replies import message, tool_call
from nemo_gym.authoring.verifier_cases import offline_server
from nemo_gym.authoring.verifier_proof import VerifierProof, offline_client, verify_replies, verify_reply
from nemo_gym.grading import language
from resources_servers.instruction_following import audit
from resources_servers.instruction_following.app import InstructionFollowingServer
from resources_servers.instruction_following.generate import RECIPES, rows

ROWS = rows(2 * len(RECIPES), seed=3)
ROW: dict[str, Any] = {
    "responses_create_params": {"input": "Write about the sea in a few words. Use no commas."},
    "verifier_metadata": {
        "instruction_id_list": ["punctuation:no_comma", "detectable_format:title"],
        "kwargs": [{}, {"num_words": None}],
    },
}


class TestProof(VerifierProof):
    """Oracle, odd forms, wrong answers, cheats, broken rows, example data and fixture cases."""

    folder = Path(__file__).parents[1]
    oracle_rows = 2 * len(RECIPES)
    checked_rows = len(RECIPES)


@pytest.fixture(scope="module")
def http() -> TestClient:
    return offline_client(InstructionFollowingServer)


def test_the_verdict_shows_which_instruction_is_missed(http: TestClient) -> None:
    """The reward alone does not say what to train."""
    for row in ROWS:
        for position, text in enumerate(audit.wrong(row)):
            verdict = verify_reply(http, row, text)
            assert (verdict["reward"], verdict["follow_instruction_list"][position]) == (0.0, False), text


def test_the_question_alone_is_no_answer(http: TestClient) -> None:
    """A prompt without commas would follow `no_comma`."""
    row = {**ROW, "verifier_metadata": {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}}

    verdict = verify_reply(http, row, ROW["responses_create_params"]["input"])

    assert (verdict["reward"], verdict["unparsed_reason"]) == (0.0, "the reply repeats the question and nothing else")
    assert verify_reply(http, row, "Waves break on the shore.")["reward"] == 1.0


def test_an_instruction_to_copy_may_be_followed(http: TestClient) -> None:
    """With this instruction, the question is the answer."""
    question = "Copy this request word for word and do not answer it."
    metadata = {"instruction_id_list": ["copy:copy"], "kwargs": [{"prompt_to_repeat": question}]}
    row = {"responses_create_params": {"input": question}, "verifier_metadata": metadata}

    assert verify_reply(http, row, question)["reward"] == 1.0


@pytest.mark.parametrize(
    ("fields", "reward"),
    [
        ({}, 0.0),
        ({"grading_mode": "fraction"}, 0.5),
        ({"verifier_metadata": {**ROW["verifier_metadata"], "grading_mode": "fraction"}}, 0.5),
    ],
)
def test_fraction_rewards_the_share_that_is_followed(http: TestClient, fields: dict[str, Any], reward: float) -> None:
    """Dense rewards help early in training."""
    half, full = (verify_reply(http, {**ROW, **fields}, text) for text in ("Waves break.", "<<Sea>> Waves break."))

    assert (half["reward"], half["follow_all_instructions"]) == (reward, False)
    assert (full["reward"], full["follow_all_instructions"]) == (1.0, True)


def test_the_mode_of_the_server_wins_over_the_mode_of_the_row() -> None:
    """One dataset can be graded in two ways."""
    http = offline_client(InstructionFollowingServer, grading_mode="fraction")

    assert verify_reply(http, {**ROW, "grading_mode": "binary"}, "Waves break.")["reward"] == 0.5


def test_published_rows_with_the_fields_at_the_top_are_accepted(http: TestClient) -> None:
    """The published dataset has `instruction_id_list` and `kwargs` next to the prompt."""
    row = {"responses_create_params": ROW["responses_create_params"], "key": 1000, **ROW["verifier_metadata"]}

    assert verify_reply(http, row, "<<Sea>> Waves break.")["reward"] == 1.0


def test_an_unknown_instruction_counts_as_not_followed_and_is_named(http: TestClient) -> None:
    """A typo in the data must not give a free reward."""
    metadata = {"instruction_id_list": ["punctuation:no_comma", "punctuation:no_komma"], "kwargs": [{}, {}]}

    verdict = verify_reply(http, {**ROW, "verifier_metadata": metadata}, "Waves break.")

    assert verdict["reward"] == 0.0
    assert verdict["follow_instruction_list"] == [True, False]
    assert verdict["instruction_results"][1]["problem"] == "there is no instruction 'punctuation:no_komma'"


def test_only_the_last_output_item_is_the_answer(http: TestClient) -> None:
    """A message before a tool call without a result is not a reply."""
    verdict = verify_reply(http, ROW, [message("<<Sea>> Waves break."), *tool_call("look", {})])

    assert (verdict["reward"], verdict["unparsed_reason"]) == (0.0, "the last output item is not a message")


def test_a_missing_langdetect_is_reported_at_startup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reported in the middle of a run, it would look like ten thousand wrong answers."""
    monkeypatch.setattr(language, "find_spec", lambda name: None)

    with pytest.raises(Exception, match="langdetect is not installed"):
        offline_server(InstructionFollowingServer).setup_webserver()


def test_metrics_are_reported_for_each_instruction(http: TestClient) -> None:
    """People look for the instructions that a model does not follow."""
    tasks = [[verify_reply(http, ROW, text)] for text in ("<<Sea>> Waves break.", "Waves break.")]

    metrics = offline_server(InstructionFollowingServer).compute_metrics(tasks)

    assert metrics["pass@1/accuracy"] == 50.0
    assert metrics["pass@1/instruction_accuracy"] == 75.0
    assert metrics["followed/detectable_format:title"] == 0.5
    assert metrics["followed/punctuation:no_comma"] == 1.0


def test_concurrent_verdicts_on_a_language_are_the_same() -> None:
    """The language detector is random; its seed must be fixed in every thread."""
    row = next(row for row in ROWS if "language:response_language" in row["verifier_metadata"]["instruction_id_list"])

    verdicts = verify_replies(InstructionFollowingServer, [(row, audit.oracle(row))] * 20)

    assert [verdict["reward"] for verdict in verdicts] == [1.0] * 20

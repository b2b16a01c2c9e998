"""Prove the verifier of Reasoning Gym: extraction, partial credit and failures of scorers."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from nemo_gym.authoring.model_replies import text_response
from nemo_gym.authoring.verifier_cases import offline_server
from nemo_gym.authoring.verifier_proof import VerifierProof, offline_client, verify_reply
from resources_servers.reasoning_gym import scoring
from resources_servers.reasoning_gym.app import ReasoningGymServer, extract_answer
from resources_servers.reasoning_gym.generate import rows

pytestmark = pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="needs reasoning-gym")


class TestProof(VerifierProof):
    """Oracle, odd forms, wrong answers, cheats, broken rows, example data and fixture cases."""

    folder = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("text", "answer", "rule"),
    [
        ("<answer>4</answer>", "4", "answer_tag"),
        ("<answer>3</answer> no, <answer>4</answer>", "4", "answer_tag"),
        (r"\boxed{4} then \boxed{5}", "4", "first_box"),
        (r"\boxed{3} <answer>4</answer>", "4", "answer_tag"),
        (r"\boxed{4} or \boxed{5}", "4, 5", "first_box"),
        (r"\boxed{4}, not \boxed{5}", "4", "first_box"),
        (r"\boxed{4} $\boxed{4}$", "4", "first_box"),
        ("<answer>3</answer> or else <answer>4</answer>", "4, 3", "answer_tag"),
        ("<answer>4</answer>\n<answer>4</answer>", "4", "answer_tag"),
        ("4", "4", "whole_text"),
        ("<answer>4", None, None),
        ("<answer>3</answer> <answer>4", None, None),
        ("<answer> </answer>", None, None),
        (r"\boxed{4", None, None),
        ("4" * 30_000, None, None),
    ],
)
def test_the_answer_is_read_from_tag_box_or_text(text: str, answer: str | None, rule: str | None) -> None:
    """Tag, box and text are tried in this order; an unclosed one is no answer."""
    extraction = extract_answer(text)

    assert (getattr(extraction, "value", None), getattr(extraction, "rule", None)) == (answer, rule)


def test_partial_credit_is_the_reward() -> None:
    """The reward is the score of the task, not a yes or no."""
    row = rows(1, seed=3, datasets=("spell_backward",))[0]

    http = offline_client(ReasoningGymServer, scorer_workers=1)
    verdict = verify_reply(http, row, f"<answer>{row['answer'][:-1]}?</answer>")

    assert 0.0 < verdict["reward"] < 1.0
    assert (verdict["score"], verdict["task_name"]) == (verdict["reward"], "spell_backward")


def test_a_scorer_that_does_not_finish_gives_no_reward_and_a_reason() -> None:
    """Running out of time is not the same as being wrong."""
    http = offline_client(ReasoningGymServer, scorer_workers=1, scorer_cpu_seconds=0.5)
    row = rows(1, seed=3, datasets=("simple_integration",))[0]
    product = "*".join(f"sin({factor}*{row['metadata']['variable']})**7" for factor in range(1, 40))

    verdict = verify_reply(http, row, f"<answer>{product}</answer>")

    assert verdict["reward"] == 0.0
    assert "did not come to an end" in verdict["unscored_reason"]


def test_a_missing_package_is_a_failure_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without its scorers must not grade."""
    row = rows(1, seed=0)[0]
    server = offline_server(ReasoningGymServer)
    app = server.setup_webserver()
    server.setup_exception_middleware(app)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    answer = TestClient(app).post("/verify", json={**row, "response": text_response("4")})

    assert answer.status_code == 500
    assert "nemo-gym[environments]" in answer.text


def test_the_package_is_not_imported_by_the_server() -> None:
    """The import takes a second and 100 MB; only the workers need it."""
    code = "import sys, resources_servers.reasoning_gym.app; print('reasoning_gym' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert process.stdout.strip() == "False"


@pytest.mark.parametrize("dataset", ["count_bits", "chain_sum", "gsm_symbolic", "binary_alternation", "caesar_cipher"])
@pytest.mark.parametrize("wrong", ["3@", "@8", "-@", "@.25", "@k", "@/7", "@,9", "@ seven", "never @", "@%", "y@y"])
def test_the_right_answer_inside_another_one_earns_nothing(dataset: str, wrong: str) -> None:
    """The scorers of the package pay 0.5 for 16 where 6 is right, by the share of the length."""
    import reasoning_gym

    scoring.prepare()
    entry = json.loads(json.dumps(reasoning_gym.create_dataset(dataset, size=1, seed=11)[0]))
    job = {"dataset": dataset, "entry": entry}

    assert scoring.score({**job, "answer": entry["answer"]})["score"] == 1.0
    answer = wrong.replace("@", entry["answer"])
    if answer.startswith("-") and not entry["answer"][0].isdigit():
        return  # a list mark before a word
    if answer.endswith("%") and not entry["answer"][-1].isdigit():
        return
    assert scoring.score({**job, "answer": answer})["score"] == 0.0

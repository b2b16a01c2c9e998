"""`VerifierProof` passes for a good folder and fails for a faulty verifier or stale example data."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_gym.authoring.verifier_process import main
from nemo_gym.authoring.verifier_proof import VerifierProof
from tests.authoring.audit_world import AUDIT, GENERATE, tree, write_folder

__all__ = ["tree"]

TESTS = [name for name in vars(VerifierProof) if name.startswith("test_")]


@pytest.fixture(autouse=True)
def _unload_modules(tree: Path) -> Iterator[None]:
    yield
    for name in [name for name in sys.modules if name.startswith("resources_servers.words")]:
        del sys.modules[name]


def prove(folder: Path) -> dict[str, str]:
    """Run every test of a proof and return the messages of those that fail."""
    proof = type("Proof", (VerifierProof,), {"folder": folder})()
    failures = {}
    for name in TESTS:
        try:
            getattr(proof, name)()
        except AssertionError as failure:
            failures[name] = str(failure)
        except pytest.skip.Exception:
            continue
    return failures


def write_examples(folder: Path) -> None:
    rows = {}
    exec(GENERATE, rows)
    (folder / "data").mkdir()
    (folder / "data" / "example.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows["rows"](5, seed=0)))


def test_a_good_folder_is_proven(tree: Path) -> None:
    """A false alarm would make authors delete the proof."""
    folder = write_folder(tree)
    write_examples(folder)

    assert prove(folder) == {}


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        ("reward = 0.0", "test_the_oracle_solves_every_generated_row"),
        ("reward *= body.response.output_text.startswith('The')", "test_right_answers_in_odd_forms_score_full"),
        ("reward = 1.0", "test_wrong_answers_and_cheats_earn_no_more_than_allowed"),
    ],
)
def test_a_faulty_verifier_is_not_proven(tree: Path, fault: str, test: str) -> None:
    """The message must name the case and the reward."""
    failures = prove(write_folder(tree, fault=fault))

    assert "reward" in failures[test]


def test_a_broken_row_that_is_accepted_is_not_proven(tree: Path) -> None:
    """A row at fault must not look like a wrong answer."""
    malformed = 'MALFORMED = [("a word of digits", lambda row: {**row, "expected_word": "7"})]\n'

    assert "a word of digits" in prove(write_folder(tree, audit=AUDIT + malformed))["test_malformed_rows_are_refused"]


def test_stale_example_data_is_not_proven(tree: Path) -> None:
    """Both the rows and the stored rewards must come from today's code."""
    folder = write_folder(tree)
    write_examples(folder)
    rows = [json.loads(line) for line in (folder / "data" / "example.jsonl").read_text().splitlines()]
    record = {**rows[0], "response": {"id": "r", "created_at": 0, "model": "m", "object": "response", "output": [],
              "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}, "reward": 1.0}  # fmt: skip
    (folder / "data" / "example_rollouts.jsonl").write_text(f"{json.dumps(record)}\n" * 5)
    (folder / "data" / "example.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in reversed(rows)))

    failures = prove(folder)

    assert set(failures) == {
        "test_the_example_data_is_what_the_generator_writes",
        "test_the_example_rollouts_get_the_same_verdict_today",
    }


def test_a_check_without_cases_is_not_proven(tree: Path) -> None:
    """An audit.py without wrong answers would prove nothing about them."""
    failures = prove(write_folder(tree, audit=AUDIT.replace("def wrong(row)", "def unused(row)")))

    assert "no cases" in failures["test_wrong_answers_and_cheats_earn_no_more_than_allowed"]


@pytest.mark.parametrize(
    ("request_fields", "problem"),
    [
        ({"folder": "{folder}", "audit": {"rows": 1, "seed": 1}}, None),
        ({"folder": "{folder}", "cases": {}}, "exports no VERIFIER_FIXTURE"),
        ({"folder": "{folder}_nowhere", "cases": {}}, "cannot be imported"),
    ],
)
def test_the_runner_writes_a_result_or_the_problem(
    tree: Path, tmp_path: Path, request_fields: dict[str, object], problem: str | None
) -> None:
    """The command that started the runner reads only this file."""
    folder = write_folder(tree)
    request, result = tmp_path / "request.json", tmp_path / "result.json"
    request.write_text(json.dumps(request_fields).replace("{folder}", str(folder)))

    status = main(["--request", str(request), "--result", str(result)])

    fields = json.loads(result.read_text())
    assert status == int(problem is not None)
    assert fields["passed"] if problem is None else problem in fields["problem"]
